"""Names of TensorFlow 1 that `tf` lacks or means otherwise, by tools/make_tensorflow_names.py from 2.21.0."""

TABLE = {
    "gone": """
        : AUTO_REUSE AttrValue COMPILER_VERSION CXX11_ABI_FLAG CXX_VERSION ConditionalAccumulator
        ConditionalAccumulatorBase ConfigProto Dimension Event FIFOQueue FixedLenFeature FixedLenSequenceFeature
        FixedLengthRecordReader GIT_VERSION GPUOptions GRAPH_DEF_VERSION GRAPH_DEF_VERSION_MIN_CONSUMER
        GRAPH_DEF_VERSION_MIN_PRODUCER GraphDef GraphKeys GraphOptions HistogramProto IdentityReader
        InteractiveSession LMDBReader LogMessage MONOLITHIC_BUILD MetaGraphDef NameAttrList NoGradient NodeDef
        NotDifferentiable OpError OptimizerOptions PaddingFIFOQueue Print PriorityQueue QUANTIZED_DTYPES QueueBase
        RandomShuffleQueue ReaderBase RunMetadata RunOptions Session SessionLog SparseConditionalAccumulator
        SparseFeature SparseTensorValue Summary SummaryMetadata TFRecordReader TensorInfo TextLineReader VERSION
        VarLenFeature VariableScope WholeFileReader accumulate_n add_check_numerics_ops add_to_collection
        add_to_collections all_variables angle arg_max arg_min assert_greater_equal assert_integer assert_less_equal
        assert_near assert_negative assert_non_negative assert_non_positive assert_none_equal assert_positive
        assert_proper_iterable assert_rank_at_least assert_rank_in assert_same_float_dtype assert_scalar assert_type
        assert_variables_initialized assign assign_add assign_sub batch_gather batch_scatter_update
        batch_to_space_nd betainc bincount ceil check_numerics cholesky cholesky_solve clip_by_average_norm
        colocate_with confusion_matrix conj container control_flow_v2_enabled convert_to_tensor_or_indexed_slices
        convert_to_tensor_or_sparse_tensor count_nonzero count_up_to create_partitioned_variables cross cumprod
        decode_base64 decode_compressed decode_csv decode_json_example decode_raw delete_session_tensor
        depth_to_space dequantize deserialize_many_sparse diag diag_part digamma dimension_at_index dimension_value
        disable_control_flow_v2 disable_eager_execution disable_resource_variables disable_tensor_equality
        disable_v2_behavior disable_v2_tensorshape div div_no_nan enable_control_flow_v2 enable_eager_execution
        enable_resource_variables enable_tensor_equality enable_v2_behavior enable_v2_tensorshape encode_base64 erf
        erfc executing_eagerly_outside_functions expm1 extract_image_patches fake_quant_with_min_max_args
        fake_quant_with_min_max_args_gradient fake_quant_with_min_max_vars fake_quant_with_min_max_vars_gradient
        fake_quant_with_min_max_vars_per_channel fake_quant_with_min_max_vars_per_channel_gradient fft fft2d fft3d
        fixed_size_partitioner floor_div floordiv floormod get_collection get_collection_ref get_default_graph
        get_default_session get_local_variable get_seed get_session_handle get_session_tensor get_variable
        get_variable_scope global_norm global_variables global_variables_initializer glorot_normal_initializer
        glorot_uniform_initializer ifft ifft2d ifft3d igamma igammac imag initialize_all_tables
        initialize_all_variables initialize_local_variables initialize_variables invert_permutation is_finite is_inf
        is_nan is_non_decreasing is_numeric_tensor is_strictly_increasing is_variable_initialized lbeta lgamma
        lin_space load_file_system_library local_variables local_variables_initializer log log1p log_sigmoid
        logical_xor make_template matching_files matrix_band_part matrix_determinant matrix_diag matrix_diag_part
        matrix_inverse matrix_set_diag matrix_solve matrix_solve_ls matrix_transpose matrix_triangular_solve
        min_max_variable_partitioner mod model_variables moving_average_variables multinomial newaxis no_regularizer
        op_scope orthogonal_initializer parse_example parse_single_example parse_single_sequence_example
        parse_tensor placeholder placeholder_with_default polygamma py_func qr quantize quantize_v2 quantized_concat
        random_crop random_gamma random_normal random_poisson random_shuffle random_uniform read_file real
        reciprocal reduce_join regex_replace report_uninitialized_variables reset_default_graph
        resource_variables_enabled reverse_v2 rint rsqrt scatter_add scatter_div scatter_max scatter_min scatter_mul
        scatter_nd_add scatter_nd_sub scatter_nd_update scatter_sub scatter_update segment_max segment_mean
        segment_min segment_prod segment_sum self_adjoint_eig self_adjoint_eigvals serialize_many_sparse
        serialize_sparse serialize_tensor set_random_seed setdiff1d space_to_depth sparse_add sparse_concat
        sparse_fill_empty_rows sparse_mask sparse_matmul sparse_maximum sparse_merge sparse_minimum
        sparse_placeholder sparse_reduce_max sparse_reduce_max_sparse sparse_reduce_sum sparse_reduce_sum_sparse
        sparse_reorder sparse_reset_shape sparse_reshape sparse_retain sparse_segment_mean sparse_segment_sqrt_n
        sparse_segment_sum sparse_slice sparse_softmax sparse_split sparse_tensor_dense_matmul
        sparse_tensor_to_dense sparse_to_dense sparse_to_indicator sparse_transpose squared_difference string_join
        string_split string_strip string_to_hash_bucket string_to_hash_bucket_fast string_to_hash_bucket_strong
        string_to_number substr svd tables_initializer tensor_scatter_add tensor_scatter_sub tensor_scatter_update
        to_bfloat16 to_complex128 to_complex64 to_double to_float to_int32 to_int64 trace trainable_variables
        truncated_normal truncated_normal_initializer uniform_unit_scaling_initializer unsorted_segment_max
        unsorted_segment_mean unsorted_segment_min unsorted_segment_prod unsorted_segment_sqrt_n
        unsorted_segment_sum variable_axis_size_partitioner variable_op_scope variable_scope variables_initializer
        variance_scaling_initializer verify_tensor_all_finite where_v2 wrap_function write_file zeta
        data.experimental: DatasetStructure OptionalStructure RaggedTensorStructure SparseTensorStructure Structure
        TensorArrayStructure TensorStructure map_and_batch_with_legacy_function data: get_output_classes
        get_output_shapes get_output_types make_initializable_iterator make_one_shot_iterator debugging: is_finite
        is_inf is_nan is_non_decreasing is_strictly_increasing distribute: get_loss_reduction dtypes: as_string
        errors: error_code_from_exception_type exception_type_from_error_code raise_exception_on_not_ok_status
        experimental: output_all_intermediates feature_column: input_layer linear_model shared_embedding_columns
        graph_util: convert_variables_to_constants extract_sub_graph must_run_on_cpu remove_training_nodes
        tensor_shape_from_node_def_name image: extract_image_patches resize_area resize_bicubic resize_bilinear
        resize_image_with_crop_or_pad resize_image_with_pad resize_images resize_nearest_neighbor transpose_image
        initializers: global_variables local_variables tables_initializer uniform_unit_scaling variables io:
        PaddingFIFOQueue PriorityQueue QueueBase RandomShuffleQueue TFRecordCompressionType tf_record_iterator
        linalg: transpose losses: absolute_difference add_loss compute_weighted_loss cosine_distance get_losses
        get_regularization_loss get_regularization_losses get_total_loss hinge_loss huber_loss log_loss
        mean_pairwise_squared_error sigmoid_cross_entropy softmax_cross_entropy sparse_softmax_cross_entropy
        metrics: accuracy auc average_precision_at_k false_negatives false_negatives_at_thresholds false_positives
        false_positives_at_thresholds mean mean_cosine_distance mean_iou mean_per_class_accuracy mean_relative_error
        mean_tensor percentage_below precision precision_at_k precision_at_thresholds precision_at_top_k recall
        recall_at_k recall_at_thresholds recall_at_top_k root_mean_squared_error sensitivity_at_specificity
        sparse_average_precision_at_k sparse_precision_at_k specificity_at_sensitivity true_negatives
        true_negatives_at_thresholds true_positives true_positives_at_thresholds nn: avg_pool_v2
        bidirectional_dynamic_rnn conv2d_backprop_filter conv2d_backprop_input conv3d_backprop_filter
        conv3d_backprop_filter_v2 ctc_beam_search_decoder_v2 ctc_loss_v2 depthwise_conv2d_native
        depthwise_conv2d_native_backprop_filter depthwise_conv2d_native_backprop_input dynamic_rnn fused_batch_norm
        log_uniform_candidate_sampler max_pool_v2 quantized_avg_pool quantized_conv2d quantized_max_pool
        quantized_relu_x raw_rnn relu_layer softmax_cross_entropy_with_logits_v2 static_bidirectional_rnn static_rnn
        static_state_saving_rnn uniform_candidate_sampler xw_plus_b profiler: AdviceProto GraphNodeProto
        MultiGraphNodeProto OpLogProto ProfileOptionBuilder Profiler advise profile write_op_log ragged:
        RaggedTensorValue constant_value placeholder random: get_seed multinomial set_random_seed
        stateless_multinomial saved_model: Builder LEGACY_INIT_OP_KEY MAIN_OP_KEY build_signature_def
        build_tensor_info classification_signature_def get_tensor_from_tensor_info is_valid_signature load_v2
        main_op_with_restore maybe_saved_model_directory predict_signature_def regression_signature_def simple_save
        saved_model.experimental: save sets: set_difference set_intersection set_size set_union sparse:
        SparseConditionalAccumulator matmul merge placeholder reduce_max_sparse reduce_sum_sparse summary: Event
        FileWriter FileWriterCache SessionLog Summary SummaryDescription TaggedRunMetadata all_v2_summary_ops
        get_summary_description initialize merge merge_all tensor_summary test: StubOutForTesting
        compute_gradient_error get_temp_dir test_src_dir_path tpu: CrossShardOptimizer PaddingSpec batch_parallel
        bfloat16_scope core cross_replica_sum initialize_system outside_compilation replicate rewrite shard
        shutdown_system tpu.experimental: embedding_column shared_embedding_columns train: AdadeltaOptimizer
        AdagradDAOptimizer AdagradOptimizer AdamOptimizer CheckpointSaverHook CheckpointSaverListener
        ChiefSessionCreator FeedFnHook FinalOpsHook FtrlOptimizer GlobalStepWaiterHook GradientDescentOptimizer
        LoggingTensorHook LooperThread MomentumOptimizer MonitoredSession MonitoredTrainingSession
        NanLossDuringTrainingError NanTensorHook NewCheckpointReader Optimizer ProfilerHook ProximalAdagradOptimizer
        ProximalGradientDescentOptimizer QueueRunner RMSPropOptimizer Saver SaverDef Scaffold SecondOrStepTimer
        Server SessionCreator SessionManager SessionRunArgs SessionRunContext SessionRunHook SessionRunValues
        SingularMonitoredSession StepCounterHook StopAtStepHook SummarySaverHook Supervisor SyncReplicasOptimizer
        VocabInfo WorkerSessionCreator add_queue_runner assert_global_step basic_train_loop batch batch_join
        checkpoint_exists cosine_decay cosine_decay_restarts create_global_step do_quantize_training_on_graphdef
        exponential_decay export_meta_graph generate_checkpoint_state_proto get_checkpoint_mtimes get_global_step
        get_or_create_global_step global_step import_meta_graph init_from_checkpoint input_producer
        inverse_time_decay limit_epochs linear_cosine_decay match_filenames_once maybe_batch maybe_batch_join
        maybe_shuffle_batch maybe_shuffle_batch_join natural_exp_decay noisy_linear_cosine_decay piecewise_constant
        piecewise_constant_decay polynomial_decay range_input_producer remove_checkpoint replica_device_setter
        sdca_fprint sdca_optimizer sdca_shrink_l1 shuffle_batch shuffle_batch_join slice_input_producer
        start_queue_runners string_input_producer summary_iterator update_checkpoint_state warm_start write_graph
        train.experimental: DynamicLossScale FixedLossScale LossScale MixedPrecisionLossScaleOptimizer
        disable_mixed_precision_graph_rewrite enable_mixed_precision_graph_rewrite
    """,
    "other": """
        : DeviceSpec Variable VariableAggregation cond constant_initializer device executing_eagerly gradients
        hessians map_fn name_scope ones_initializer random_normal_initializer random_uniform_initializer
        variable_creator_scope where while_loop zeros_initializer data: Dataset FixedLengthRecordDataset Iterator
        TFRecordDataset TextLineDataset data.experimental: CsvDataset RandomDataset SqlDataset make_csv_dataset
        image: ResizeMethod crop_and_resize extract_glimpse resize sample_distorted_bounding_box initializers:
        constant glorot_normal glorot_uniform he_normal he_uniform identity lecun_normal lecun_uniform ones
        orthogonal random_normal random_uniform truncated_normal variance_scaling zeros losses: Reduction nn:
        avg_pool conv1d conv2d conv3d convolution ctc_beam_search_decoder ctc_loss embedding_lookup
        embedding_lookup_sparse fractional_avg_pool fractional_max_pool max_pool max_pool_with_argmax nce_loss pool
        sampled_softmax_loss softmax_cross_entropy_with_logits saved_model: load strings: split train: Checkpoint
    """,
    "module": """
        : app distributions flags gfile layers logging manip mixed_precision python_io resource_loader spectral
        user_ops nn: rnn_cell saved_model: builder constants loader main_op signature_constants signature_def_utils
        tag_constants utils train: queue_runner
    """,
    "arguments": """
        : argmax/2/input,axis,name,output_type argmin/2/input,axis,name,output_type
        assert_equal/2/x,y,summarize,message,name assert_greater/2/x,y,summarize,message,name
        assert_less/2/x,y,summarize,message,name assert_rank/2/x,rank,message,name
        batch_to_space/1/input,crops,name,block_shape boolean_mask/2/tensor,mask,name,axis
        case/5/pred_fn_pairs,default,exclusive,strict,name constant/2/value,dtype,name
        convert_to_tensor/2/value,dtype,name,dtype_hint expand_dims/3/input,axis,name
        foldl/7/fn,elems,initializer,parallel_iterations,back_prop,swap_memory,name
        foldr/7/fn,elems,initializer,parallel_iterations,back_prop,swap_memory,name
        gather/3/params,indices,validate_indices,name,axis,batch_dims
        gather_nd/2/params,indices,name,batch_dims,bad_indices_policy norm/5/tensor,ord,axis,keepdims,name
        ones_like/0/dtype,name pad/3/tensor,paddings,mode,name,constant_values
        reduce_all/4/input_tensor,axis,keepdims,name reduce_any/4/input_tensor,axis,keepdims,name
        reduce_logsumexp/4/input_tensor,axis,keepdims,name reduce_max/4/input_tensor,axis,keepdims,name
        reduce_mean/4/input_tensor,axis,keepdims,name reduce_min/4/input_tensor,axis,keepdims,name
        reduce_prod/4/input_tensor,axis,keepdims,name reduce_sum/4/input_tensor,axis,keepdims,name
        reverse_sequence/5/input,seq_lengths,seq_axis,batch_axis,name scalar_mul/3/scalar,x,name
        scan/9/fn,elems,initializer,parallel_iterations,back_prop,swap_memory,infer_shape,reverse,name
        shape/1/input,name,out_type size/1/input,name,out_type space_to_batch/1/input,paddings,name,block_shape
        squeeze/3/input,axis,name transpose/2/a,perm,name,conjugate tuple/1/tensors,name,control_inputs
        zeros_like/0/dtype,name data.experimental: Counter/3/start,step,dtype
        choose_from_datasets/3/datasets,choice_dataset,stop_on_empty_dataset
        make_batched_features_dataset/15/file_pattern,batch_size,features,reader,label_key,reader_args,num_epochs,shuffle,shuffle_buffer_size,shuffle_seed,prefetch_buffer_size,reader_num_threads,parser_num_threads,sloppy_ordering,drop_final_batch
        sample_from_datasets/4/datasets,weights,seed,stop_on_empty_dataset debugging:
        assert_all_finite/0/name,x,message assert_equal/2/x,y,summarize,message,name
        assert_greater/2/x,y,summarize,message,name assert_greater_equal/2/x,y,summarize,message,name
        assert_integer/3/x,message,name assert_less/2/x,y,summarize,message,name
        assert_less_equal/2/x,y,summarize,message,name assert_near/4/x,y,rtol,atol,summarize,message,name
        assert_negative/1/x,summarize,message,name assert_non_negative/1/x,summarize,message,name
        assert_non_positive/1/x,summarize,message,name assert_none_equal/2/x,y,summarize,message,name
        assert_positive/1/x,summarize,message,name assert_rank/2/x,rank,message,name
        assert_rank_at_least/2/x,rank,message,name assert_rank_in/2/x,ranks,message,name
        assert_scalar/1/tensor,name,message assert_shapes/5/shapes,data,summarize,message,name
        assert_type/4/tensor,tf_type,message,name image: draw_bounding_boxes/2/images,boxes,name,colors io:
        decode_csv/4/records,record_defaults,field_delim,use_quote_delim,name,na_value,select_cols
        decode_raw/3/input_bytes,out_type,little_endian,name parse_example/2/serialized,features,name,example_names
        parse_single_example/2/serialized,features,name,example_names serialize_many_sparse/1/sp_input,name,out_type
        serialize_sparse/1/sp_input,name,out_type linalg: norm/5/tensor,ord,axis,keepdims,name losses:
        mean_squared_error/0/ math: argmax/2/input,axis,name,output_type argmin/2/input,axis,name,output_type
        bincount/5/arr,weights,minlength,maxlength,dtype
        confusion_matrix/3/labels,predictions,num_classes,dtype,name,weights
        count_nonzero/0/axis,keepdims,dtype,name,input in_top_k/0/predictions,targets,k,name
        log_softmax/3/logits,axis,name reduce_all/4/input_tensor,axis,keepdims,name
        reduce_any/4/input_tensor,axis,keepdims,name reduce_logsumexp/4/input_tensor,axis,keepdims,name
        reduce_max/4/input_tensor,axis,keepdims,name reduce_mean/4/input_tensor,axis,keepdims,name
        reduce_min/4/input_tensor,axis,keepdims,name reduce_prod/4/input_tensor,axis,keepdims,name
        reduce_sum/4/input_tensor,axis,keepdims,name scalar_mul/3/scalar,x,name softmax/3/logits,axis,name metrics:
        mean_absolute_error/0/ mean_squared_error/0/ nn: avg_pool2d/0/ksize,strides,padding,data_format,name,input
        batch_norm_with_global_normalization/0/beta,gamma,variance_epsilon,scale_after_normalization,name,input,mean,variance
        conv2d_transpose/0/output_shape,strides,padding,data_format,name,input,filters,dilations
        conv3d_transpose/0/output_shape,strides,padding,data_format,name,input,filters,dilations
        crelu/1/features,name,axis depth_to_space/2/input,block_size,name,data_format
        depthwise_conv2d/4/input,filter,strides,padding,name,data_format,dilations
        dilation2d/1/input,strides,padding,name,filters,dilations dropout/1/x,noise_shape,seed,name,rate
        erosion2d/1/value,strides,padding,name in_top_k/0/predictions,targets,k,name log_softmax/3/logits,axis,name
        moments/3/x,axes,shift,name,keepdims
        safe_embedding_lookup_sparse/5/embedding_weights,sparse_ids,sparse_weights,combiner,default_id,name,max_norm,allow_fast_lookup
        separable_conv2d/5/input,depthwise_filter,pointwise_filter,strides,padding,name,data_format,dilations
        sigmoid_cross_entropy_with_logits/3/labels,logits,name softmax/3/logits,axis,name
        space_to_batch/1/input,paddings,name,block_shape space_to_depth/2/input,block_size,name,data_format
        sparse_softmax_cross_entropy_with_logits/3/labels,logits,name
        sufficient_statistics/3/x,axes,shift,name,keepdims
        weighted_cross_entropy_with_logits/4/labels,logits,pos_weight,name
        weighted_moments/3/x,axes,frequency_weights,name,keepdims random: poisson/0/lam,shape,dtype,seed,name
        saved_model: contains_saved_model/1/export_dir sparse: add/3/a,b,threshold
        concat/2/axis,sp_inputs,name,expand_nonconcat_dims reduce_max/3/sp_input,axis,keepdims
        reduce_sum/3/sp_input,axis,keepdims
        segment_mean/3/data,indices,segment_ids,name,num_segments,sparse_gradient
        segment_sqrt_n/3/data,indices,segment_ids,name,num_segments,sparse_gradient
        segment_sum/3/data,indices,segment_ids,name,num_segments,sparse_gradient
        split/0/sp_input,num_split,axis,name strings: length/1/input,name,unit
        reduce_join/2/inputs,axis,separator,name,keepdims substr/3/input,pos,len,name,unit
        to_hash_bucket/0/num_buckets,name,input to_number/0/out_type,name,input summary:
        audio/1/name,sample_rate,max_outputs histogram/1/name image/1/name,max_outputs scalar/1/name text/1/name
    """,
}
