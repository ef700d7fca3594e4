"""The schedulers by the names of their classes in diffusers.

A new scheduler is a function that fills a table, and an entry here.
"""

import dataclasses
from collections.abc import Callable, Mapping

from deeppcr.diffusion.config import Config, Field, count, fields_of, number, numbers, one_of
from deeppcr.diffusion.schedulers.ddpm import ddim, ddpm, lcm
from deeppcr.diffusion.schedulers.dpm_solver import deis, dpm_solver
from deeppcr.diffusion.schedulers.euler import euler, euler_ancestral, heun, lms
from deeppcr.diffusion.schedulers.flow_match import flow_match
from deeppcr.diffusion.schedulers.pndm import pndm
from deeppcr.diffusion.schedulers.unipc import unipc
from deeppcr.diffusion.table import Table


@dataclasses.dataclass(frozen=True)
class Scheduler:
    """A kind of sampler.

    Attributes:
        table: ``table(config, steps)``, where ``config`` has all fields, and the options.
        fields: the fields of its configuration, by name.
        options: what it takes besides: arguments of `Schedule.from_config`.
        calls: the model calls of each step, but for the last.
    """

    table: Callable[[Config, int], Table]
    fields: Mapping[str, Field]
    options: Mapping[str, Field] = dataclasses.field(default_factory=dict)
    calls: int = 1


def _betas(
    *schedules: str, start: float = 0.0001, end: float = 0.02, schedule: str = "linear"
) -> dict[str, Field]:
    """The training noise; ``schedules`` are further values of ``beta_schedule``."""
    return fields_of(
        num_train_timesteps=1000,
        beta_start=start,
        beta_end=end,
        beta_schedule=(schedule, "linear", "scaled_linear", "squaredcos_cap_v2", *schedules),
        trained_betas=numbers(None),
    )


def _times(spacing: str) -> dict[str, Field]:
    """The spacing of times (Lin et al., WACV 2024, table 2)."""
    return fields_of(
        timestep_spacing=(spacing, "leading", "linspace", "trailing"),
        steps_offset=count(0, least=0),
    )


def _clip(default: bool) -> dict[str, Field]:
    return fields_of(clip_sample=default, clip_sample_range=1.0)


def _values(*values: str, like_the_first: tuple[str, ...]) -> Field:
    """One of some values; diffusers reads others as the first."""
    return one_of(*values, aliases=dict.fromkeys(like_the_first, values[0]))


PREDICTIONS = ("epsilon", "sample", "v_prediction")
PREDICTION = fields_of(prediction_type=PREDICTIONS)
NOISE_PREDICTION = fields_of(prediction_type=("epsilon", "v_prediction"))
ZERO_SNR = fields_of(rescale_betas_zero_snr=False)
RAMPS = fields_of(use_karras_sigmas=False, use_exponential_sigmas=False, use_beta_sigmas=False)
THRESHOLD = fields_of(
    thresholding=False,
    dynamic_thresholding_ratio=number(0.995, 0, 1),
    sample_max_value=1.0,
)
FINAL = fields_of(final_sigmas_type=("zero", "sigma_min"))
LIMITS = fields_of(sigma_min=None, sigma_max=None)
BETAS, LINSPACE = _betas(), _times("linspace")
# Those of DDPM, DDIM and latent consistency models; of solvers in sigma, and in log(alpha / sigma).
ORIGINAL = ZERO_SNR | _times("leading") | PREDICTION | THRESHOLD
IN_SIGMA = LINSPACE | RAMPS | PREDICTION
IN_LAMBDA = (
    BETAS
    | LINSPACE
    | RAMPS
    | THRESHOLD
    | fields_of(
        prediction_type=(*PREDICTIONS, "flow_prediction"),
        use_flow_sigmas=False,
        flow_shift=1.0,
        use_dynamic_shifting=False,
        time_shift_type=("exponential",),
        lower_order_final=True,
    )
)
MU, SIGMAS = fields_of(mu=None), fields_of(sigmas=numbers(None))

DDIM = Scheduler(
    ddim,
    BETAS | ORIGINAL | _clip(True) | fields_of(set_alpha_to_one=True),
    options=fields_of(eta=number(0.0, least=0)),
)
DDPM = Scheduler(
    ddpm,
    _betas("sigmoid", "laplace")
    | ORIGINAL
    | _clip(True)
    | fields_of(
        variance_type=(
            "fixed_small",
            "fixed_small_log",
            "fixed_large",
            "fixed_large_log",
            "learned",
            "learned_range",
        )
    ),
)
DPM_SOLVERS = ("dpmsolver++", "dpmsolver", "sde-dpmsolver", "sde-dpmsolver++")

SCHEDULERS = {
    "DDIMParallelScheduler": DDIM,
    "DDIMScheduler": DDIM,
    "DDPMParallelScheduler": DDPM,
    "DDPMScheduler": DDPM,
    "DEISMultistepScheduler": Scheduler(
        deis,
        IN_LAMBDA
        | fields_of(
            solver_order=count(2, most=3),
            algorithm_type=_values("deis", like_the_first=("dpmsolver", "dpmsolver++")),
            solver_type=_values("logrho", like_the_first=("midpoint", "heun", "bh1", "bh2")),
        ),
        options=MU,
    ),
    "DPMSolverMultistepScheduler": Scheduler(
        dpm_solver,
        IN_LAMBDA
        | ZERO_SNR
        | FINAL
        | fields_of(
            solver_order=count(2, most=3),
            algorithm_type=_values(*DPM_SOLVERS, like_the_first=("deis",)),
            solver_type=_values("midpoint", "heun", like_the_first=("logrho", "bh1", "bh2")),
            euler_at_final=False,
            use_lu_lambdas=False,
            lambda_min_clipped=-float("inf"),
            variance_type=(None, "learned", "learned_range"),
        ),
        options=MU,
    ),
    "EulerAncestralDiscreteScheduler": Scheduler(
        euler_ancestral, BETAS | ZERO_SNR | LINSPACE | NOISE_PREDICTION
    ),
    "EulerDiscreteScheduler": Scheduler(
        euler,
        BETAS
        | ZERO_SNR
        | IN_SIGMA
        | FINAL
        | LIMITS
        | fields_of(
            interpolation_type=("linear", "log_linear"), timestep_type=("discrete", "continuous")
        ),
    ),
    "FlowMatchEulerDiscreteScheduler": Scheduler(
        flow_match,
        RAMPS
        | fields_of(
            num_train_timesteps=1000,
            shift=1.0,
            use_dynamic_shifting=False,
            base_shift=number(0.5, optional=True),
            max_shift=number(1.15, optional=True),
            base_image_seq_len=256,
            max_image_seq_len=4096,
            time_shift_type=("exponential", "linear"),
            invert_sigmas=False,
            shift_terminal=None,
            stochastic_sampling=False,
        ),
        options=MU | SIGMAS,
    ),
    "HeunDiscreteScheduler": Scheduler(
        heun, _betas("exp", start=0.00085, end=0.012) | IN_SIGMA | _clip(False), calls=2
    ),
    "LCMScheduler": Scheduler(
        lcm,
        _betas(start=0.00085, end=0.012, schedule="scaled_linear")
        | ORIGINAL
        | _clip(False)
        | fields_of(original_inference_steps=50, set_alpha_to_one=True, timestep_scaling=10.0),
    ),
    "LMSDiscreteScheduler": Scheduler(lms, BETAS | IN_SIGMA),
    "PNDMScheduler": Scheduler(
        pndm,
        BETAS
        | _times("leading")
        | NOISE_PREDICTION
        | fields_of(skip_prk_steps=False, set_alpha_to_one=False),
    ),
    "UniPCMultistepScheduler": Scheduler(
        unipc,
        IN_LAMBDA
        | ZERO_SNR
        | FINAL
        | LIMITS
        | fields_of(
            solver_order=2,
            predict_x0=True,
            solver_type=_values("bh2", "bh1", like_the_first=("midpoint", "heun", "logrho")),
            disable_corrector=numbers(()),
            solver_p=(None,),
            shift_terminal=None,
        ),
        options=MU | SIGMAS,
    ),
}

# Schedulers of diffusers that are not here, and one that samples the same models.
INSTEAD = {
    "DPMSolverSDEScheduler": "DPMSolverMultistepScheduler with algorithm_type='sde-dpmsolver++'",
    "DPMSolverSinglestepScheduler": "DPMSolverMultistepScheduler",
    "FlowMatchHeunDiscreteScheduler": "FlowMatchEulerDiscreteScheduler",
    "FlowMatchLCMScheduler": "FlowMatchEulerDiscreteScheduler with stochastic_sampling=True",
    "IPNDMScheduler": "PNDMScheduler",
    "KDPM2AncestralDiscreteScheduler": "EulerAncestralDiscreteScheduler",
    "KDPM2DiscreteScheduler": "HeunDiscreteScheduler",
    "SASolverScheduler": "DPMSolverMultistepScheduler with algorithm_type='sde-dpmsolver++'",
    "TCDScheduler": "LCMScheduler",
    "UnCLIPScheduler": "DDPMScheduler with variance_type='learned_range'",
}

# All fields that the schedulers of diffusers 0.42 have, or once had: a configuration may hold those
# of a scheduler that the model had before.
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
