"""The names of all fields that the schedulers of diffusers 0.42 have, or once had.

A configuration may hold fields of a scheduler that the model had before: diffusers hands them on.
"""

NAMES = """
    algorithm_type alpha_cum_end alpha_cum_start base_image_seq_len base_shift beta_end
    beta_schedule beta_start block_length clip_denoised clip_sample clip_sample_range correct_steps
    corrector_k corrector_order corrector_selection corrector_selection_tau corrector_steps
    disable_corrector dynamic_thresholding_ratio editing_threshold entropy_bound eps eta
    euler_at_final final_sigmas_type final_step_size_scale flow_shift gamma gamma_cum_end
    gamma_cum_start interpolation_type invert_sigmas lambda_min_clipped lower_order_final
    mask_token_id masking_schedule max_image_seq_len max_shift minimal_topk n_grid noise_mode
    noise_sampler_seed num_inference_steps num_policy_substeps num_train_timesteps num_vec_classes
    original_inference_steps predict_epsilon predict_x0 prediction_type predictor_order
    rescale_betas_zero_snr rho s s_noise sample_max_value sampling_eps scale_factors scaler
    schedule_mode scheduler_type set_alpha_to_one shift shift_terminal sigma_data sigma_max
    sigma_min sigma_schedule skip_prk_steps snr snr_shift_scale solver_order solver_p solver_type
    stage_range stages steps_offset stochastic_sampling t_lim_ode t_lim_ode_below t_max t_min
    tail_step_multiplier tail_steps tau_func tensor_format threshold thresholding time_shift_type
    timestep_scaling timestep_spacing timestep_type timestep_values trained_betas tsr_k tsr_sigma
    upscale_mode use_beta_sigmas use_dynamic_shifting use_exponential_sigmas use_flow_sigmas
    use_karras_sigmas use_lu_lambdas variance_type
"""

FIELDS_OF_DIFFUSERS = frozenset(NAMES.split())
