import sys

import sambaflow.samba as samba
import sambaflow.samba.utils as utils
import torch
from sambaflow.samba.utils.argparser import parse_app_args

args = parse_app_args(argv=sys.argv[1:])
image = samba.randn(8, 10, name="image", batch_dim=0)
label = samba.randint(3, (8,), name="label", batch_dim=0)


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.gemm = torch.nn.Linear(10, 3)
        self.criterion = torch.nn.CrossEntropyLoss()

    def forward(self, image, label):
        return self.criterion(self.gemm(image), label)


net = Net()
samba.from_torch_model_(net)
optim = samba.optim.SGD(net.parameters(), lr=0.1)
if args.command == "compile":
    samba.session.compile(net, (image, label), optim, name="net", config_dict=vars(args))
else:
    outputs = utils.trace_graph(net, (image, label), optim, pef=args.pef)
    for _ in range(3):
        samba.session.run(input_tensors=[image, label], output_tensors=outputs)
