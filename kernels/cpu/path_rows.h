/* path_rows.h - the rows of struct cpu_path, the same for each instruction set */
.gemm = path_gemm, .tree_sum = path_tree_sum, .rows_join = path_rows_join, .rmsnorm_fwd = path_rmsnorm_fwd, .rmsnorm_bwd = path_rmsnorm_bwd,
                   .rope_fwd = path_rope_fwd, .rope_bwd = path_rope_bwd, .swiglu_fwd = path_swiglu_fwd, .swiglu_bwd = path_swiglu_bwd,
                   .add = path_add, .cast = path_cast, .blend = path_blend, .softcap = path_softcap, .axpy = path_axpy,
                   .rows_sum = path_rows_sum, .rows_load = path_rows_load, .tiles_load = path_tiles_load, .rows_store = path_rows_store,
                   .rows_dot = path_rows_dot, .combine_fwd = path_combine_fwd, .combine_bwd = path_combine_bwd, .attend = path_attend,
                   .attend_bwd = path_attend_bwd, .logprob_fwd = path_logprob_fwd, .logprob_bwd = path_logprob_bwd,
                   .sample_fwd = path_sample_fwd, .adamw = path_adamw, .sumsq = path_sumsq,
