"""Torch's layers and functions in forms that a target takes where it refuses torch's own; equal in values and gradients.

`legalise(model, target)` puts them in place by itself.
"""

from portwright.layers.legal.attention import *
from portwright.layers.legal.calls import *
from portwright.layers.legal.checkpointing import *
from portwright.layers.legal.conv import *
from portwright.layers.legal.diagonals import *
from portwright.layers.legal.fourier import *
from portwright.layers.legal.grid import *
from portwright.layers.legal.indexing import *
from portwright.layers.legal.legalise import *
from portwright.layers.legal.losses import *
from portwright.layers.legal.norms import *
from portwright.layers.legal.padding import *
from portwright.layers.legal.pointwise import *
from portwright.layers.legal.pooling import *
from portwright.layers.legal.recurrent import *
from portwright.layers.legal.reductions import *
from portwright.layers.legal.resample import *
from portwright.layers.legal.scattering import *
from portwright.layers.legal.windows import *
from portwright.legal_forms import Form as Form
from portwright.legal_forms import cure_for as cure_for
from portwright.legal_forms import forms_for as forms_for
from portwright.legal_forms import forms_table as forms_table
