"""Public names of torch, for `from torch.nn import *`: read off torch 2.13, since torch is never imported here.

What TorchScript, quantization and torch's own machinery need is left out. A name that ends with an underscore is there where
the name without it is.
"""

from __future__ import annotations

_NAMES = {
    "torch": """
        BoolTensor ByteTensor CharTensor DoubleTensor Event FloatTensor Generator GradScaler IntTensor
        LongTensor ShortTensor Size Stream Tensor abs absolute acos acosh adaptive_avg_pool1d
        adaptive_max_pool1d add addbmm addcdiv addcmul addmm addmv addr adjoint affine_grid_generator
        all allclose alpha_dropout amax amin aminmax angle any arange arccos arccosh arcsin arcsinh
        arctan arctan2 arctanh are_deterministic_algorithms_enabled argmax argmin argsort argwhere
        as_strided as_strided_scatter as_tensor asarray asin asinh atan atan2 atanh atleast_1d
        atleast_2d atleast_3d autocast avg_pool1d baddbmm bartlett_window batch_norm
        batch_norm_backward_elemt batch_norm_backward_reduce batch_norm_elemt batch_norm_gather_stats
        batch_norm_gather_stats_with_counts batch_norm_stats batch_norm_update_stats bernoulli bfloat16
        bilinear binary_cross_entropy_with_logits bincount binomial bit bits16 bits1x8 bits2x4 bits4x2
        bits8 bitwise_and bitwise_left_shift bitwise_not bitwise_or bitwise_right_shift bitwise_xor
        blackman_window block_diag bmm bool broadcast_tensors broadcast_to bucketize can_cast
        cartesian_prod cat cdist cdouble ceil celu cfloat chain_matmul chalf channel_shuffle cholesky
        cholesky_inverse cholesky_solve chunk clamp clamp_max clamp_min clip clone column_stack
        combinations compile complex complex128 complex32 complex64 concat concatenate cond conj
        conj_physical constant_pad_nd conv1d conv2d conv3d conv_tbc conv_transpose1d conv_transpose2d
        conv_transpose3d convolution copysign corrcoef cos cosh cosine_embedding_loss cosine_similarity
        count_nonzero cov cpp cross ctc_loss cummax cummin cumprod cumsum cumulative_trapezoid
        default_generator deg2rad det detach device diag diag_embed diagflat diagonal diagonal_scatter
        diff digamma dist div divide dot double dropout dsmm dsplit dstack dtype e einsum embedding
        embedding_bag embedding_renorm_ empty empty_like empty_permuted empty_strided enable_grad eq
        equal erf erfc erfinv exp exp2 expm1 export eye feature_alpha_dropout feature_dropout fill finfo
        fix flatten flip fliplr flipud float float16 float32 float4_e2m1fn_x2 float64 float8_e4m3fn
        float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz float8_e8m0fnu float_power floor floor_divide fmax
        fmin fmod fork frac frexp frobenius_norm from_file from_numpy frombuffer full full_like gather
        gcd ge geqrf ger get_default_device get_default_dtype get_deterministic_debug_mode get_device
        get_device_module get_float32_matmul_precision get_num_interop_threads get_num_threads
        get_rng_state gradient greater greater_equal grid_sampler grid_sampler_2d grid_sampler_3d
        group_norm gru gru_cell gt half hamming_window hann_window hardshrink has_lapack has_mkl
        has_openmp has_spectral hash_tensor heaviside hinge_embedding_loss histc histogram histogramdd
        hsmm hsplit hspmm hstack hypot i0 igamma igammac iinfo imag index_add index_copy index_fill
        index_put index_reduce index_select inf inference_mode initial_seed inner instance_norm int
        int16 int32 int64 int8 inverse is_anomaly_check_nan_enabled is_anomaly_enabled is_complex
        is_conj is_deterministic_algorithms_warn_only_enabled is_distributed is_floating_point
        is_grad_enabled is_inference is_inference_mode_enabled is_neg is_nonzero is_same_size is_signed
        is_storage is_tensor is_warn_always_enabled isclose isfinite isin isinf isnan isneginf isposinf
        isreal istft kaiser_window kl_div kron kthvalue layer_norm layout lcm ldexp le lerp less
        less_equal lgamma linspace load lobpcg log log10 log1p log2 log_softmax logaddexp logaddexp2
        logcumsumexp logdet logical_and logical_not logical_or logical_xor logit logspace logsumexp long
        lstm lstm_cell lt lu_solve lu_unpack manual_seed margin_ranking_loss masked_fill masked_scatter
        masked_select matmul matrix_exp matrix_power max max_pool1d max_pool1d_with_indices max_pool2d
        max_pool3d maximum mean median memory_format meshgrid min minimum mm mode moveaxis movedim msort
        mul multinomial multiply mv mvlgamma nan nan_to_num nanmean nanmedian nanquantile nansum narrow
        native_batch_norm native_channel_shuffle native_dropout native_group_norm native_layer_norm
        native_norm ne neg negative newaxis nextafter no_grad nonzero nonzero_static norm
        norm_except_dim normal not_equal nuclear_norm numel ones ones_like orgqr ormqr outer
        pairwise_distance pdist permute pi pinverse pixel_shuffle pixel_unshuffle poisson
        poisson_nll_loss polar polygamma positive pow prelu prod promote_types put qint32 qint8 qr
        qscheme quantile quint2x4 quint4x2 quint8 rad2deg rand rand_like randint randint_like randn
        randn_like randperm range ravel real reciprocal relu remainder renorm repeat_interleave reshape
        resize_as_ resize_as_sparse_ resolve_conj resolve_neg result_type rms_norm rnn_relu
        rnn_relu_cell rnn_tanh rnn_tanh_cell roll rot90 round row_stack rrelu rsqrt rsub saddmm save
        scalar_tensor scatter scatter_add scatter_reduce searchsorted seed select select_scatter selu
        set_anomaly_enabled set_default_device set_default_tensor_type set_deterministic_debug_mode
        set_float32_matmul_precision set_flush_denormal set_num_interop_threads set_num_threads
        set_printoptions set_rng_state set_warn_always sgn short sigmoid sign signbit sin sinc sinh
        slice_inverse slice_scatter slogdet smm softmax sort sparse_bsc_tensor sparse_bsr_tensor
        sparse_compressed_tensor sparse_coo_tensor sparse_csc_tensor sparse_csr_tensor split
        split_with_sizes spmm sqrt square squeeze stack std std_mean stft sub subtract sum svd swapaxes
        swapdims t take take_along_dim tan tanh tensor tensor_split tensordot thread_safe_generator
        threshold tile topk trace transpose trapezoid trapz triangular_solve tril tril_indices
        triplet_margin_loss triu triu_indices true_divide trunc typename uint16 uint32 uint64 uint8
        unbind unflatten unique_consecutive unravel_index unsafe_chunk unsafe_split
        unsafe_split_with_sizes unsqueeze use_deterministic_algorithms vander var var_mean vdot
        view_as_complex view_as_real vmap vsplit vstack wait where xlogy zero_ zeros zeros_like
    """,
    "torch.nn": """
        AdaptiveAvgPool1d AdaptiveAvgPool2d AdaptiveAvgPool3d AdaptiveLogSoftmaxWithLoss
        AdaptiveMaxPool1d AdaptiveMaxPool2d AdaptiveMaxPool3d AlphaDropout AvgPool1d AvgPool2d AvgPool3d
        BCELoss BCEWithLogitsLoss BatchNorm1d BatchNorm2d BatchNorm3d Bilinear Buffer CELU CTCLoss
        ChannelShuffle CircularPad1d CircularPad2d CircularPad3d ConstantPad1d ConstantPad2d
        ConstantPad3d Container Conv1d Conv2d Conv3d ConvTranspose1d ConvTranspose2d ConvTranspose3d
        CosineEmbeddingLoss CosineSimilarity CrossEntropyLoss CrossMapLRN2d DataParallel Dropout
        Dropout1d Dropout2d Dropout3d ELU Embedding EmbeddingBag FeatureAlphaDropout Flatten Fold
        FractionalMaxPool2d FractionalMaxPool3d GELU GLU GRU GRUCell GaussianNLLLoss GroupNorm
        Hardshrink Hardsigmoid Hardswish Hardtanh HingeEmbeddingLoss HuberLoss Identity InstanceNorm1d
        InstanceNorm2d InstanceNorm3d KLDivLoss L1Loss LPPool1d LPPool2d LPPool3d LSTM LSTMCell
        LayerNorm LazyBatchNorm1d LazyBatchNorm2d LazyBatchNorm3d LazyConv1d LazyConv2d LazyConv3d
        LazyConvTranspose1d LazyConvTranspose2d LazyConvTranspose3d LazyInstanceNorm1d
        LazyInstanceNorm2d LazyInstanceNorm3d LazyLinear LeakyReLU Linear LinearCrossEntropyLoss
        LinearCrossEntropyOptions LocalResponseNorm LogSigmoid LogSoftmax MSELoss MarginRankingLoss
        MaxPool1d MaxPool2d MaxPool3d MaxUnpool1d MaxUnpool2d MaxUnpool3d Mish Module ModuleDict
        ModuleList MultiLabelMarginLoss MultiLabelSoftMarginLoss MultiMarginLoss MultiheadAttention
        NLLLoss NLLLoss2d PReLU PairwiseDistance Parameter ParameterDict ParameterList PixelShuffle
        PixelUnshuffle PoissonNLLLoss RMSNorm RNN RNNBase RNNCell RNNCellBase RReLU ReLU ReLU6
        ReflectionPad1d ReflectionPad2d ReflectionPad3d ReplicationPad1d ReplicationPad2d
        ReplicationPad3d SELU Sequential SiLU Sigmoid SmoothL1Loss SoftMarginLoss Softmax Softmax2d
        Softmin Softplus Softshrink Softsign SyncBatchNorm Tanh Tanhshrink Threshold Transformer
        TransformerDecoder TransformerDecoderLayer TransformerEncoder TransformerEncoderLayer
        TripletMarginLoss TripletMarginWithDistanceLoss Unflatten Unfold UninitializedBuffer
        UninitializedParameter Upsample UpsamplingBilinear2d UpsamplingNearest2d ZeroPad1d ZeroPad2d
        ZeroPad3d factory_kwargs functional init
    """,
    "torch.nn.functional": """
        adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d adaptive_max_pool1d
        adaptive_max_pool2d adaptive_max_pool3d affine_grid alpha_dropout avg_pool1d avg_pool2d
        avg_pool3d batch_norm bilinear binary_cross_entropy binary_cross_entropy_with_logits celu
        channel_shuffle conv1d conv2d conv3d conv_tbc conv_transpose1d conv_transpose2d conv_transpose3d
        cosine_embedding_loss cosine_similarity cross_entropy ctc_loss dropout dropout1d dropout2d
        dropout3d elu embedding embedding_bag feature_alpha_dropout fold fractional_max_pool2d
        fractional_max_pool3d gaussian_nll_loss gelu glu grid_sample group_norm grouped_mm
        gumbel_softmax hardshrink hardsigmoid hardswish hardtanh hinge_embedding_loss huber_loss
        instance_norm interpolate kl_div l1_loss layer_norm leaky_relu linear linear_cross_entropy
        local_response_norm log_softmax logsigmoid lp_pool1d lp_pool2d lp_pool3d margin_ranking_loss
        max_pool1d max_pool2d max_pool3d max_unpool1d max_unpool2d max_unpool3d mish mse_loss
        multi_head_attention_forward multi_margin_loss multilabel_margin_loss
        multilabel_soft_margin_loss native_channel_shuffle nll_loss normalize one_hot pad
        pairwise_distance pdist pixel_shuffle pixel_unshuffle poisson_nll_loss prelu relu relu6 rms_norm
        rrelu scaled_dot_product_attention scaled_grouped_mm scaled_mm selu sigmoid silu smooth_l1_loss
        soft_margin_loss softmax softmin softplus softshrink softsign tanh tanhshrink threshold
        triplet_margin_loss triplet_margin_with_distance_loss unfold upsample upsample_bilinear
        upsample_nearest
    """,
    "torch.optim": """
        ASGD Adadelta Adafactor Adagrad Adam AdamW Adamax LBFGS Muon NAdam Optimizer RAdam RMSprop Rprop
        SGD SparseAdam swap_in_optimizer_params_and_state
    """,
    "torch.optim.lr_scheduler": """
        ChainedScheduler ConstantLR CosineAnnealingLR CosineAnnealingWarmRestarts CyclicLR ExponentialLR
        LRScheduler LambdaLR LinearLR MultiStepLR MultiplicativeLR OneCycleLR PolynomialLR
        ReduceLROnPlateau SequentialLR StepLR
    """,
    "torch.utils.data": """
        BatchSampler ChainDataset ConcatDataset DataLoader Dataset DistributedSampler IterableDataset
        RandomSampler Sampler SequentialSampler StackDataset Subset SubsetRandomSampler TensorDataset
        WeightedRandomSampler default_collate default_convert get_worker_info random_split
    """,
    "torch.autograd": """
        Function NestedIOFunction Variable backward detect_anomaly enable_grad
        enforce_grad_layout_policy grad gradcheck gradgradcheck inference_mode no_grad
        set_detect_anomaly set_grad_enabled set_multithreading_enabled variable
    """,
    "torch.distributed": """
        Backend DeviceMesh FileStore GroupMember GroupName HashStore P2POp PrefixStore ProcessGroup
        ProcessGroupGloo ReduceOp Reducer Store TCPStore Work all_gather all_gather_coalesced
        all_gather_into_tensor all_gather_object all_gather_single all_reduce all_reduce_coalesced
        all_to_all all_to_all_single barrier batch_isend_irecv breakpoint broadcast
        broadcast_object_list default_pg_timeout destroy_process_group gather gather_object get_backend
        get_backend_config get_debug_level get_default_backend_for_device get_global_rank get_group_rank
        get_node_local_rank get_pg_count get_process_group_ranks get_rank get_world_size group
        init_device_mesh init_process_group irecv is_available is_backend_available is_gloo_available
        is_initialized is_mpi_available is_nccl_available is_torchelastic_launched is_ucc_available
        is_xccl_available isend log monitored_barrier new_group new_subgroups
        new_subgroups_by_enumeration record_comm recv recv_object_list reduce reduce_op reduce_scatter
        reduce_scatter_single reduce_scatter_tensor register_rendezvous_handler rendezvous scatter
        scatter_object_list send send_object_list set_debug_level set_debug_level_from_env shrink_group
        split_group supports_complex
    """,
}
PUBLIC: dict[str, frozenset[str]] = {module: frozenset(names.split()) for module, names in _NAMES.items()}
