"""Names of TensorFlow 1 that `tf` lacks or means otherwise, by tools/make_tensorflow_names.py from 2.21.0.

Rows: name, kind, number of leading arguments that are the same, keywords that both have.
"""

ROWS = """\
AUTO_REUSE	gone
AttrValue	gone
COMPILER_VERSION	gone
CXX11_ABI_FLAG	gone
CXX_VERSION	gone
ConditionalAccumulator	gone
ConditionalAccumulatorBase	gone
ConfigProto	gone
DeviceSpec	other
Dimension	gone
Event	gone
FIFOQueue	gone
FixedLenFeature	gone
FixedLenSequenceFeature	gone
FixedLengthRecordReader	gone
GIT_VERSION	gone
GPUOptions	gone
GRAPH_DEF_VERSION	gone
GRAPH_DEF_VERSION_MIN_CONSUMER	gone
GRAPH_DEF_VERSION_MIN_PRODUCER	gone
GraphDef	gone
GraphKeys	gone
GraphOptions	gone
HistogramProto	gone
IdentityReader	gone
InteractiveSession	gone
LMDBReader	gone
LogMessage	gone
MONOLITHIC_BUILD	gone
MetaGraphDef	gone
NameAttrList	gone
NoGradient	gone
NodeDef	gone
NotDifferentiable	gone
OpError	gone
OptimizerOptions	gone
PaddingFIFOQueue	gone
Print	gone
PriorityQueue	gone
QUANTIZED_DTYPES	gone
QueueBase	gone
RandomShuffleQueue	gone
ReaderBase	gone
RunMetadata	gone
RunOptions	gone
Session	gone
SessionLog	gone
SparseConditionalAccumulator	gone
SparseFeature	gone
SparseTensorValue	gone
Summary	gone
SummaryMetadata	gone
TFRecordReader	gone
TensorInfo	gone
TextLineReader	gone
VERSION	gone
VarLenFeature	gone
Variable	other
VariableAggregation	other
VariableScope	gone
WholeFileReader	gone
accumulate_n	gone
add_check_numerics_ops	gone
add_to_collection	gone
add_to_collections	gone
all_variables	gone
angle	gone
app	module
arg_max	gone
arg_min	gone
argmax	arguments	2	input axis name output_type
argmin	arguments	2	input axis name output_type
assert_equal	arguments	2	x y summarize message name
assert_greater	arguments	2	x y summarize message name
assert_greater_equal	gone
assert_integer	gone
assert_less	arguments	2	x y summarize message name
assert_less_equal	gone
assert_near	gone
assert_negative	gone
assert_non_negative	gone
assert_non_positive	gone
assert_none_equal	gone
assert_positive	gone
assert_proper_iterable	gone
assert_rank	arguments	2	x rank message name
assert_rank_at_least	gone
assert_rank_in	gone
assert_same_float_dtype	gone
assert_scalar	gone
assert_type	gone
assert_variables_initialized	gone
assign	gone
assign_add	gone
assign_sub	gone
batch_gather	gone
batch_scatter_update	gone
batch_to_space	arguments	1	input crops name block_shape
batch_to_space_nd	gone
betainc	gone
bincount	gone
boolean_mask	arguments	2	tensor mask name axis
case	arguments	5	pred_fn_pairs default exclusive strict name
ceil	gone
check_numerics	gone
cholesky	gone
cholesky_solve	gone
clip_by_average_norm	gone
colocate_with	gone
cond	arguments	3	pred true_fn false_fn name
confusion_matrix	gone
conj	gone
constant	arguments	4	value dtype shape name
constant_initializer	other
container	gone
control_flow_v2_enabled	gone
convert_to_tensor	arguments	2	value dtype name dtype_hint
convert_to_tensor_or_indexed_slices	gone
convert_to_tensor_or_sparse_tensor	gone
count_nonzero	gone
count_up_to	gone
create_partitioned_variables	gone
cross	gone
cumprod	gone
data.Dataset	other
data.FixedLengthRecordDataset	other
data.Iterator	other
data.TFRecordDataset	other
data.TextLineDataset	other
data.experimental.Counter	arguments	3	start step dtype
data.experimental.CsvDataset	other
data.experimental.DatasetStructure	gone
data.experimental.OptionalStructure	gone
data.experimental.RaggedTensorStructure	gone
data.experimental.RandomDataset	other
data.experimental.SparseTensorStructure	gone
data.experimental.SqlDataset	other
data.experimental.Structure	gone
data.experimental.TensorArrayStructure	gone
data.experimental.TensorStructure	gone
data.experimental.choose_from_datasets	arguments	3	datasets choice_dataset stop_on_empty_dataset
data.experimental.make_batched_features_dataset	arguments	15	file_pattern batch_size features reader label_key reader_args num_epochs shuffle shuffle_buffer_size shuffle_seed prefetch_buffer_size reader_num_threads parser_num_threads sloppy_ordering drop_final_batch
data.experimental.make_csv_dataset	other
data.experimental.map_and_batch_with_legacy_function	gone
data.experimental.sample_from_datasets	arguments	4	datasets weights seed stop_on_empty_dataset
data.get_output_classes	gone
data.get_output_shapes	gone
data.get_output_types	gone
data.make_initializable_iterator	gone
data.make_one_shot_iterator	gone
debugging.is_finite	gone
debugging.is_inf	gone
debugging.is_nan	gone
debugging.is_non_decreasing	gone
debugging.is_strictly_increasing	gone
decode_base64	gone
decode_compressed	gone
decode_csv	gone
decode_json_example	gone
decode_raw	gone
delete_session_tensor	gone
depth_to_space	gone
dequantize	gone
deserialize_many_sparse	gone
device	other
diag	gone
diag_part	gone
digamma	gone
dimension_at_index	gone
dimension_value	gone
disable_control_flow_v2	gone
disable_eager_execution	gone
disable_resource_variables	gone
disable_tensor_equality	gone
disable_v2_behavior	gone
disable_v2_tensorshape	gone
distribute.get_loss_reduction	gone
distributions	module
div	gone
div_no_nan	gone
dtypes.as_string	gone
enable_control_flow_v2	gone
enable_eager_execution	gone
enable_resource_variables	gone
enable_tensor_equality	gone
enable_v2_behavior	gone
enable_v2_tensorshape	gone
encode_base64	gone
erf	gone
erfc	gone
errors.error_code_from_exception_type	gone
errors.exception_type_from_error_code	gone
errors.raise_exception_on_not_ok_status	gone
executing_eagerly	other
executing_eagerly_outside_functions	gone
expand_dims	arguments	3	input axis name
experimental.output_all_intermediates	gone
expm1	gone
extract_image_patches	gone
fake_quant_with_min_max_args	gone
fake_quant_with_min_max_args_gradient	gone
fake_quant_with_min_max_vars	gone
fake_quant_with_min_max_vars_gradient	gone
fake_quant_with_min_max_vars_per_channel	gone
fake_quant_with_min_max_vars_per_channel_gradient	gone
feature_column.input_layer	gone
feature_column.linear_model	gone
feature_column.shared_embedding_columns	gone
fft	gone
fft2d	gone
fft3d	gone
fixed_size_partitioner	gone
flags	module
floor_div	gone
floordiv	gone
floormod	gone
foldl	arguments	7	fn elems initializer parallel_iterations back_prop swap_memory name
foldr	arguments	7	fn elems initializer parallel_iterations back_prop swap_memory name
gather	arguments	3	params indices validate_indices name axis batch_dims
gather_nd	arguments	2	params indices name batch_dims bad_indices_policy
get_collection	gone
get_collection_ref	gone
get_default_graph	gone
get_default_session	gone
get_local_variable	gone
get_seed	gone
get_session_handle	gone
get_session_tensor	gone
get_variable	gone
get_variable_scope	gone
gfile	module
global_norm	gone
global_variables	gone
global_variables_initializer	gone
glorot_normal_initializer	gone
glorot_uniform_initializer	gone
gradients	other
graph_util.convert_variables_to_constants	gone
graph_util.extract_sub_graph	gone
graph_util.must_run_on_cpu	gone
graph_util.remove_training_nodes	gone
graph_util.tensor_shape_from_node_def_name	gone
hessians	other
ifft	gone
ifft2d	gone
ifft3d	gone
igamma	gone
igammac	gone
imag	gone
image.ResizeMethod	other
image.crop_and_resize	other
image.draw_bounding_boxes	arguments	2	images boxes name colors
image.extract_glimpse	arguments	5	input size offsets centered normalized name
image.extract_image_patches	gone
image.resize	other
image.resize_area	gone
image.resize_bicubic	gone
image.resize_bilinear	gone
image.resize_image_with_crop_or_pad	gone
image.resize_image_with_pad	gone
image.resize_images	gone
image.resize_nearest_neighbor	gone
image.sample_distorted_bounding_box	arguments	3	image_size bounding_boxes seed min_object_covered aspect_ratio_range area_range max_attempts use_image_if_no_bounding_boxes name
image.transpose_image	gone
initialize_all_tables	gone
initialize_all_variables	gone
initialize_local_variables	gone
initialize_variables	gone
initializers.constant	other
initializers.global_variables	gone
initializers.glorot_normal	other
initializers.glorot_uniform	other
initializers.he_normal	other
initializers.he_uniform	other
initializers.identity	other
initializers.lecun_normal	other
initializers.lecun_uniform	other
initializers.local_variables	gone
initializers.ones	other
initializers.orthogonal	other
initializers.random_normal	other
initializers.random_uniform	other
initializers.tables_initializer	gone
initializers.truncated_normal	other
initializers.uniform_unit_scaling	gone
initializers.variables	gone
initializers.variance_scaling	other
initializers.zeros	other
invert_permutation	gone
io.PaddingFIFOQueue	gone
io.PriorityQueue	gone
io.QueueBase	gone
io.RandomShuffleQueue	gone
io.TFRecordCompressionType	gone
io.decode_csv	arguments	4	records record_defaults field_delim use_quote_delim name na_value select_cols
io.decode_raw	arguments	3	input_bytes out_type little_endian name
io.parse_example	arguments	2	serialized features name example_names
io.parse_single_example	arguments	2	serialized features name example_names
io.serialize_many_sparse	arguments	1	sp_input name out_type
io.serialize_sparse	arguments	1	sp_input name out_type
io.tf_record_iterator	gone
is_finite	gone
is_inf	gone
is_nan	gone
is_non_decreasing	gone
is_numeric_tensor	gone
is_strictly_increasing	gone
is_variable_initialized	gone
layers	module
lbeta	gone
lgamma	gone
lin_space	gone
linalg.norm	arguments	5	tensor ord axis keepdims name
linalg.transpose	gone
load_file_system_library	gone
local_variables	gone
local_variables_initializer	gone
log	gone
log1p	gone
log_sigmoid	gone
logging	module
logical_xor	gone
losses.Reduction	other
losses.absolute_difference	gone
losses.add_loss	gone
losses.compute_weighted_loss	gone
losses.cosine_distance	gone
losses.get_losses	gone
losses.get_regularization_loss	gone
losses.get_regularization_losses	gone
losses.get_total_loss	gone
losses.hinge_loss	gone
losses.huber_loss	gone
losses.log_loss	gone
losses.mean_pairwise_squared_error	gone
losses.mean_squared_error	arguments	0
losses.sigmoid_cross_entropy	gone
losses.softmax_cross_entropy	gone
losses.sparse_softmax_cross_entropy	gone
make_template	gone
manip	module
map_fn	other
matching_files	gone
math.argmax	arguments	2	input axis name output_type
math.argmin	arguments	2	input axis name output_type
math.bincount	arguments	5	arr weights minlength maxlength dtype
math.confusion_matrix	arguments	3	labels predictions num_classes dtype name weights
math.count_nonzero	arguments	0	axis keepdims dtype name input
math.in_top_k	arguments	0	predictions targets k name
math.log_softmax	arguments	3	logits axis name
math.reduce_all	arguments	4	input_tensor axis keepdims name
math.reduce_any	arguments	4	input_tensor axis keepdims name
math.reduce_logsumexp	arguments	4	input_tensor axis keepdims name
math.reduce_max	arguments	4	input_tensor axis keepdims name
math.reduce_mean	arguments	4	input_tensor axis keepdims name
math.reduce_min	arguments	4	input_tensor axis keepdims name
math.reduce_prod	arguments	4	input_tensor axis keepdims name
math.reduce_sum	arguments	4	input_tensor axis keepdims name
math.scalar_mul	arguments	3	scalar x name
math.softmax	arguments	3	logits axis name
matrix_band_part	gone
matrix_determinant	gone
matrix_diag	gone
matrix_diag_part	gone
matrix_inverse	gone
matrix_set_diag	gone
matrix_solve	gone
matrix_solve_ls	gone
matrix_transpose	gone
matrix_triangular_solve	gone
metrics.accuracy	gone
metrics.auc	gone
metrics.average_precision_at_k	gone
metrics.false_negatives	gone
metrics.false_negatives_at_thresholds	gone
metrics.false_positives	gone
metrics.false_positives_at_thresholds	gone
metrics.mean	gone
metrics.mean_absolute_error	arguments	0
metrics.mean_cosine_distance	gone
metrics.mean_iou	gone
metrics.mean_per_class_accuracy	gone
metrics.mean_relative_error	gone
metrics.mean_squared_error	arguments	0
metrics.mean_tensor	gone
metrics.percentage_below	gone
metrics.precision	gone
metrics.precision_at_k	gone
metrics.precision_at_thresholds	gone
metrics.precision_at_top_k	gone
metrics.recall	gone
metrics.recall_at_k	gone
metrics.recall_at_thresholds	gone
metrics.recall_at_top_k	gone
metrics.root_mean_squared_error	gone
metrics.sensitivity_at_specificity	gone
metrics.sparse_average_precision_at_k	gone
metrics.sparse_precision_at_k	gone
metrics.specificity_at_sensitivity	gone
metrics.true_negatives	gone
metrics.true_negatives_at_thresholds	gone
metrics.true_positives	gone
metrics.true_positives_at_thresholds	gone
min_max_variable_partitioner	gone
mixed_precision	module
mod	gone
model_variables	gone
moving_average_variables	gone
multinomial	gone
name_scope	other
newaxis	gone
nn.avg_pool	other
nn.avg_pool2d	arguments	0	ksize strides padding data_format name input
nn.avg_pool_v2	gone
nn.batch_norm_with_global_normalization	arguments	0	beta gamma variance_epsilon scale_after_normalization name input mean variance
nn.bidirectional_dynamic_rnn	gone
nn.conv1d	other
nn.conv2d	other
nn.conv2d_backprop_filter	gone
nn.conv2d_backprop_input	gone
nn.conv2d_transpose	arguments	0	output_shape strides padding data_format name input filters dilations
nn.conv3d	other
nn.conv3d_backprop_filter	gone
nn.conv3d_backprop_filter_v2	gone
nn.conv3d_transpose	arguments	0	output_shape strides padding data_format name input filters dilations
nn.convolution	other
nn.crelu	arguments	1	features name axis
nn.ctc_beam_search_decoder	arguments	4	inputs sequence_length beam_width top_paths
nn.ctc_beam_search_decoder_v2	gone
nn.ctc_loss	other
nn.ctc_loss_v2	gone
nn.depth_to_space	arguments	2	input block_size name data_format
nn.depthwise_conv2d	arguments	4	input filter strides padding name data_format dilations
nn.depthwise_conv2d_native	gone
nn.depthwise_conv2d_native_backprop_filter	gone
nn.depthwise_conv2d_native_backprop_input	gone
nn.dilation2d	arguments	1	input strides padding name filters dilations
nn.dropout	arguments	1	x noise_shape seed name rate
nn.dynamic_rnn	gone
nn.embedding_lookup	arguments	2	params ids name max_norm
nn.embedding_lookup_sparse	arguments	3	params sp_ids sp_weights name combiner max_norm allow_fast_lookup
nn.erosion2d	arguments	1	value strides padding name
nn.fractional_avg_pool	arguments	4	value pooling_ratio pseudo_random overlapping seed name
nn.fractional_max_pool	arguments	4	value pooling_ratio pseudo_random overlapping seed name
nn.fused_batch_norm	gone
nn.in_top_k	arguments	0	predictions targets k name
nn.log_softmax	arguments	3	logits axis name
nn.log_uniform_candidate_sampler	gone
nn.max_pool	other
nn.max_pool_v2	gone
nn.max_pool_with_argmax	other
nn.moments	arguments	3	x axes shift name keepdims
nn.nce_loss	arguments	9	weights biases labels inputs num_sampled num_classes num_true sampled_values remove_accidental_hits name
nn.pool	other
nn.quantized_avg_pool	gone
nn.quantized_conv2d	gone
nn.quantized_max_pool	gone
nn.quantized_relu_x	gone
nn.raw_rnn	gone
nn.relu_layer	gone
nn.rnn_cell	module
nn.safe_embedding_lookup_sparse	arguments	5	embedding_weights sparse_ids sparse_weights combiner default_id name max_norm allow_fast_lookup
nn.sampled_softmax_loss	arguments	9	weights biases labels inputs num_sampled num_classes num_true sampled_values remove_accidental_hits name seed
nn.separable_conv2d	arguments	5	input depthwise_filter pointwise_filter strides padding name data_format dilations
nn.sigmoid_cross_entropy_with_logits	arguments	3	labels logits name
nn.softmax	arguments	3	logits axis name
nn.softmax_cross_entropy_with_logits	other
nn.softmax_cross_entropy_with_logits_v2	gone
nn.space_to_batch	arguments	1	input paddings name block_shape
nn.space_to_depth	arguments	2	input block_size name data_format
nn.sparse_softmax_cross_entropy_with_logits	arguments	3	labels logits name
nn.static_bidirectional_rnn	gone
nn.static_rnn	gone
nn.static_state_saving_rnn	gone
nn.sufficient_statistics	arguments	3	x axes shift name keepdims
nn.uniform_candidate_sampler	gone
nn.weighted_cross_entropy_with_logits	arguments	4	labels logits pos_weight name
nn.weighted_moments	arguments	3	x axes frequency_weights name keepdims
nn.xw_plus_b	gone
no_regularizer	gone
norm	arguments	5	tensor ord axis keepdims name
ones_initializer	other
ones_like	arguments	0	dtype name
op_scope	gone
orthogonal_initializer	gone
pad	arguments	3	tensor paddings mode name constant_values
parse_example	gone
parse_single_example	gone
parse_single_sequence_example	gone
parse_tensor	gone
placeholder	gone
placeholder_with_default	gone
polygamma	gone
profiler.AdviceProto	gone
profiler.GraphNodeProto	gone
profiler.MultiGraphNodeProto	gone
profiler.OpLogProto	gone
profiler.ProfileOptionBuilder	gone
profiler.Profiler	gone
profiler.advise	gone
profiler.profile	gone
profiler.write_op_log	gone
py_func	gone
python_io	module
qr	gone
quantize	gone
quantize_v2	gone
quantized_concat	gone
ragged.RaggedTensorValue	gone
ragged.constant_value	gone
ragged.placeholder	gone
random.get_seed	gone
random.multinomial	gone
random.poisson	arguments	0	lam shape dtype seed name
random.set_random_seed	gone
random.stateless_multinomial	gone
random_crop	gone
random_gamma	gone
random_normal	gone
random_normal_initializer	other
random_poisson	gone
random_shuffle	gone
random_uniform	gone
random_uniform_initializer	other
read_file	gone
real	gone
reciprocal	gone
reduce_all	arguments	4	input_tensor axis keepdims name
reduce_any	arguments	4	input_tensor axis keepdims name
reduce_join	gone
reduce_logsumexp	arguments	4	input_tensor axis keepdims name
reduce_max	arguments	4	input_tensor axis keepdims name
reduce_mean	arguments	4	input_tensor axis keepdims name
reduce_min	arguments	4	input_tensor axis keepdims name
reduce_prod	arguments	4	input_tensor axis keepdims name
reduce_sum	arguments	4	input_tensor axis keepdims name
regex_replace	gone
report_uninitialized_variables	gone
reset_default_graph	gone
resource_loader	module
resource_variables_enabled	gone
reverse_sequence	arguments	5	input seq_lengths seq_axis batch_axis name
reverse_v2	gone
rint	gone
rsqrt	gone
saved_model.Builder	gone
saved_model.LEGACY_INIT_OP_KEY	gone
saved_model.MAIN_OP_KEY	gone
saved_model.build_signature_def	gone
saved_model.build_tensor_info	gone
saved_model.builder	module
saved_model.classification_signature_def	gone
saved_model.constants	module
saved_model.contains_saved_model	arguments	1	export_dir
saved_model.experimental.save	gone
saved_model.get_tensor_from_tensor_info	gone
saved_model.is_valid_signature	gone
saved_model.load	other
saved_model.load_v2	gone
saved_model.loader	module
saved_model.main_op	module
saved_model.main_op_with_restore	gone
saved_model.maybe_saved_model_directory	gone
saved_model.predict_signature_def	gone
saved_model.regression_signature_def	gone
saved_model.signature_constants	module
saved_model.signature_def_utils	module
saved_model.simple_save	gone
saved_model.tag_constants	module
saved_model.utils	module
scalar_mul	arguments	3	scalar x name
scan	arguments	9	fn elems initializer parallel_iterations back_prop swap_memory infer_shape reverse name
scatter_add	gone
scatter_div	gone
scatter_max	gone
scatter_min	gone
scatter_mul	gone
scatter_nd_add	gone
scatter_nd_sub	gone
scatter_nd_update	gone
scatter_sub	gone
scatter_update	gone
segment_max	gone
segment_mean	gone
segment_min	gone
segment_prod	gone
segment_sum	gone
self_adjoint_eig	gone
self_adjoint_eigvals	gone
serialize_many_sparse	gone
serialize_sparse	gone
serialize_tensor	gone
set_random_seed	gone
setdiff1d	gone
sets.set_difference	gone
sets.set_intersection	gone
sets.set_size	gone
sets.set_union	gone
shape	arguments	1	input name out_type
size	arguments	1	input name out_type
space_to_batch	arguments	1	input paddings name block_shape
space_to_depth	gone
sparse.SparseConditionalAccumulator	gone
sparse.add	arguments	3	a b threshold
sparse.concat	arguments	2	axis sp_inputs name expand_nonconcat_dims
sparse.matmul	gone
sparse.merge	gone
sparse.placeholder	gone
sparse.reduce_max	arguments	3	sp_input axis keepdims
sparse.reduce_max_sparse	gone
sparse.reduce_sum	arguments	3	sp_input axis keepdims
sparse.reduce_sum_sparse	gone
sparse.segment_mean	arguments	3	data indices segment_ids name num_segments sparse_gradient
sparse.segment_sqrt_n	arguments	3	data indices segment_ids name num_segments sparse_gradient
sparse.segment_sum	arguments	3	data indices segment_ids name num_segments sparse_gradient
sparse.split	arguments	0	sp_input num_split axis name
sparse_add	gone
sparse_concat	gone
sparse_fill_empty_rows	gone
sparse_mask	gone
sparse_matmul	gone
sparse_maximum	gone
sparse_merge	gone
sparse_minimum	gone
sparse_placeholder	gone
sparse_reduce_max	gone
sparse_reduce_max_sparse	gone
sparse_reduce_sum	gone
sparse_reduce_sum_sparse	gone
sparse_reorder	gone
sparse_reset_shape	gone
sparse_reshape	gone
sparse_retain	gone
sparse_segment_mean	gone
sparse_segment_sqrt_n	gone
sparse_segment_sum	gone
sparse_slice	gone
sparse_softmax	gone
sparse_split	gone
sparse_tensor_dense_matmul	gone
sparse_tensor_to_dense	gone
sparse_to_dense	gone
sparse_to_indicator	gone
sparse_transpose	gone
spectral	module
squared_difference	gone
squeeze	arguments	3	input axis name
string_join	gone
string_split	gone
string_strip	gone
string_to_hash_bucket	gone
string_to_hash_bucket_fast	gone
string_to_hash_bucket_strong	gone
string_to_number	gone
strings.length	arguments	1	input name unit
strings.reduce_join	arguments	2	inputs axis separator name keepdims
strings.split	arguments	3	input sep maxsplit name
strings.substr	arguments	3	input pos len name unit
strings.to_hash_bucket	arguments	0	num_buckets name input
strings.to_number	arguments	0	out_type name input
substr	gone
summary.Event	gone
summary.FileWriter	gone
summary.FileWriterCache	gone
summary.SessionLog	gone
summary.Summary	gone
summary.SummaryDescription	gone
summary.TaggedRunMetadata	gone
summary.all_v2_summary_ops	gone
summary.audio	arguments	1	name sample_rate max_outputs
summary.get_summary_description	gone
summary.histogram	arguments	1	name
summary.image	arguments	1	name max_outputs
summary.initialize	gone
summary.merge	gone
summary.merge_all	gone
summary.scalar	arguments	1	name
summary.tensor_summary	gone
summary.text	arguments	1	name
svd	gone
tables_initializer	gone
tensor_scatter_add	gone
tensor_scatter_sub	gone
tensor_scatter_update	gone
test.StubOutForTesting	gone
test.compute_gradient_error	gone
test.get_temp_dir	gone
test.test_src_dir_path	gone
to_bfloat16	gone
to_complex128	gone
to_complex64	gone
to_double	gone
to_float	gone
to_int32	gone
to_int64	gone
tpu.CrossShardOptimizer	gone
tpu.PaddingSpec	gone
tpu.batch_parallel	gone
tpu.bfloat16_scope	gone
tpu.core	gone
tpu.cross_replica_sum	gone
tpu.experimental.embedding_column	gone
tpu.experimental.shared_embedding_columns	gone
tpu.initialize_system	gone
tpu.outside_compilation	gone
tpu.replicate	gone
tpu.rewrite	gone
tpu.shard	gone
tpu.shutdown_system	gone
trace	gone
train.AdadeltaOptimizer	gone
train.AdagradDAOptimizer	gone
train.AdagradOptimizer	gone
train.AdamOptimizer	gone
train.Checkpoint	other
train.CheckpointSaverHook	gone
train.CheckpointSaverListener	gone
train.ChiefSessionCreator	gone
train.FeedFnHook	gone
train.FinalOpsHook	gone
train.FtrlOptimizer	gone
train.GlobalStepWaiterHook	gone
train.GradientDescentOptimizer	gone
train.LoggingTensorHook	gone
train.LooperThread	gone
train.MomentumOptimizer	gone
train.MonitoredSession	gone
train.MonitoredTrainingSession	gone
train.NanLossDuringTrainingError	gone
train.NanTensorHook	gone
train.NewCheckpointReader	gone
train.Optimizer	gone
train.ProfilerHook	gone
train.ProximalAdagradOptimizer	gone
train.ProximalGradientDescentOptimizer	gone
train.QueueRunner	gone
train.RMSPropOptimizer	gone
train.Saver	gone
train.SaverDef	gone
train.Scaffold	gone
train.SecondOrStepTimer	gone
train.Server	gone
train.SessionCreator	gone
train.SessionManager	gone
train.SessionRunArgs	gone
train.SessionRunContext	gone
train.SessionRunHook	gone
train.SessionRunValues	gone
train.SingularMonitoredSession	gone
train.StepCounterHook	gone
train.StopAtStepHook	gone
train.SummarySaverHook	gone
train.Supervisor	gone
train.SyncReplicasOptimizer	gone
train.VocabInfo	gone
train.WorkerSessionCreator	gone
train.add_queue_runner	gone
train.assert_global_step	gone
train.basic_train_loop	gone
train.batch	gone
train.batch_join	gone
train.checkpoint_exists	gone
train.cosine_decay	gone
train.cosine_decay_restarts	gone
train.create_global_step	gone
train.do_quantize_training_on_graphdef	gone
train.experimental.DynamicLossScale	gone
train.experimental.FixedLossScale	gone
train.experimental.LossScale	gone
train.experimental.MixedPrecisionLossScaleOptimizer	gone
train.experimental.disable_mixed_precision_graph_rewrite	gone
train.experimental.enable_mixed_precision_graph_rewrite	gone
train.exponential_decay	gone
train.export_meta_graph	gone
train.generate_checkpoint_state_proto	gone
train.get_checkpoint_mtimes	gone
train.get_global_step	gone
train.get_or_create_global_step	gone
train.global_step	gone
train.import_meta_graph	gone
train.init_from_checkpoint	gone
train.input_producer	gone
train.inverse_time_decay	gone
train.limit_epochs	gone
train.linear_cosine_decay	gone
train.match_filenames_once	gone
train.maybe_batch	gone
train.maybe_batch_join	gone
train.maybe_shuffle_batch	gone
train.maybe_shuffle_batch_join	gone
train.natural_exp_decay	gone
train.noisy_linear_cosine_decay	gone
train.piecewise_constant	gone
train.piecewise_constant_decay	gone
train.polynomial_decay	gone
train.queue_runner	module
train.range_input_producer	gone
train.remove_checkpoint	gone
train.replica_device_setter	gone
train.sdca_fprint	gone
train.sdca_optimizer	gone
train.sdca_shrink_l1	gone
train.shuffle_batch	gone
train.shuffle_batch_join	gone
train.slice_input_producer	gone
train.start_queue_runners	gone
train.string_input_producer	gone
train.summary_iterator	gone
train.update_checkpoint_state	gone
train.warm_start	gone
train.write_graph	gone
trainable_variables	gone
transpose	arguments	2	a perm name conjugate
truncated_normal	gone
truncated_normal_initializer	gone
tuple	arguments	1	tensors name control_inputs
uniform_unit_scaling_initializer	gone
unsorted_segment_max	gone
unsorted_segment_mean	gone
unsorted_segment_min	gone
unsorted_segment_prod	gone
unsorted_segment_sqrt_n	gone
unsorted_segment_sum	gone
user_ops	module
variable_axis_size_partitioner	gone
variable_creator_scope	other
variable_op_scope	gone
variable_scope	gone
variables_initializer	gone
variance_scaling_initializer	gone
verify_tensor_all_finite	gone
where	other
where_v2	gone
while_loop	other
wrap_function	gone
write_file	gone
zeros_initializer	other
zeros_like	arguments	0	dtype name
zeta	gone
"""
