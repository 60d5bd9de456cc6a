"""All settings of a process: read once, frozen, checked (TGI reference §6.1, §6.3; own names start with `FARM_`)."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping, Sequence
from dataclasses import Field, dataclass, field, fields
from importlib.metadata import version as installed_version
from socket import gethostname
from typing import Any
from urllib.parse import quote, unquote, urlsplit, urlunsplit

from common import flags
from common.errors import StartError
from common.flags import Option

DEMO_MODEL = "SmolLM2-135M-Instruct"
"""The model whose 4-bit weights come as a Python package; not a hub id."""

HUB_TOKENS = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_API_TOKEN")

CAST_TYPES = ("fp32", "fp16", "bf16", "float32", "float16", "bfloat16")

DEFAULT_REDIS_URL = "redis://127.0.0.1:6379"

ONE_HOST = {"hostname": "127.0.0.1", "port": 8080, "max_concurrent_requests": 128}
"""Defaults of `tokenfarm up`."""


def tgi(default: Any, help: str, **spec: Any) -> Any:
    """A setting as TGI has it; `names` are its environment names when they are more or others than the field's."""
    return _option(default, {"help": help, **spec})


def own(default: Any, help: str, **spec: Any) -> Any:
    """A setting of the farm: its environment name is `FARM_…` unless `names` are given."""
    return _option(default, {"help": help, "own": True, **spec})


def _option(default: Any, metadata: dict[str, Any]) -> Any:
    return field(default=default, metadata=metadata, repr=not metadata.get("secret", False))


@dataclass(frozen=True, kw_only=True)
class Settings:
    """One process' settings. None means: not given, the part that uses it decides."""

    model_id: str = tgi(DEMO_MODEL, "hub id, folder or GGUF file")
    revision: str | None = tgi(None, "hub revision")
    dtype: str = tgi("auto", "precision of weights and activations", choices=("auto", "float16", "bfloat16", "float32"))
    quantize: str | None = tgi(None, "how the weights are quantized")
    trust_remote_code: bool = tgi(False, "allow pickled weights and code that comes with a model")
    tokenizer_config_path: str | None = tgi(None, "another tokenizer_config.json, for its chat template")
    sharded: bool | None = tgi(None, "run one worker on several devices")
    num_shard: int | None = tgi(None, "how many devices", least=1)
    huggingface_hub_cache: str | None = tgi(None, "folder of downloaded models", names=("HUGGINGFACE_HUB_CACHE", "HF_HUB_CACHE"))
    hf_home: str | None = tgi(None, "folder of the hub library", flag=False)
    hf_endpoint: str | None = tgi(None, "address of the hub", flag=False)
    hf_hub_offline: bool = tgi(False, "never ask the hub", flag=False)
    hf_token: str | None = tgi(None, "token of the hub", names=HUB_TOKENS, flag=False, secret=True)

    max_concurrent_requests: int | None = tgi(None, "requests one gateway holds at once", least=1)
    max_best_of: int = tgi(2, "largest best_of", least=1)
    max_stop_sequences: int = tgi(4, "most stop sequences of a request", least=0)
    max_top_n_tokens: int = tgi(5, "most top tokens of a request", least=0)
    max_input_tokens: int | None = tgi(None, "most tokens of a prompt", names=("MAX_INPUT_TOKENS", "MAX_INPUT_LENGTH"), least=1)
    max_total_tokens: int | None = tgi(None, "most tokens of prompt and output", names=("MAX_TOTAL_TOKENS", "HF_SEQUENCE_LENGTH"), least=2)
    max_client_batch_size: int = tgi(4, "most prompts of one completions request", least=1)
    payload_limit: int = tgi(2_000_000, "largest body in bytes", least=1)
    disable_grammar_support: bool = tgi(False, "refuse grammars and tools")
    enable_prefill_logprobs: bool = tgi(False, "allow log-probabilities of prompts")
    max_batch_size: int | None = tgi(None, "rows of a worker's batch", names=("MAX_BATCH_SIZE", "HF_BATCH_SIZE"), least=1)
    max_batch_prefill_tokens: int | None = tgi(None, "most tokens of one prefill", least=1)
    max_batch_total_tokens: int | None = tgi(None, "most tokens of a batch", least=1)
    waiting_served_ratio: float = tgi(0.3, "waiting requests ÷ running ones that start a prefill", least=0)
    max_waiting_tokens: int = tgi(20, "steps after which waiting requests start a prefill", least=0)

    hf_num_cores: int | None = tgi(None, "Neuron cores of one worker, its tensor-parallel degree", least=1)
    hf_auto_cast_type: str | None = tgi(None, "precision of a Neuron artifact", choices=CAST_TYPES)
    custom_cache_repo: str | None = tgi(None, "hub repository of compiled Neuron graphs", flag=False)
    neuron_rt_visible_cores: str | None = tgi(None, "Neuron cores this host may use, for example 0-3,8", flag=False)
    neuron_rt_num_cores: int | None = tgi(None, "how many Neuron cores this host may use", flag=False, least=1)

    enable_hpu_graph: bool = tgi(True, "capture Gaudi graphs", flag=False)
    limit_hpu_graph: bool = tgi(True, "compile Gaudi's prefills without capturing them, which saves memory", flag=False)
    use_flash_attention: bool = tgi(True, "fused attention on Gaudi where a model has it", flag=False)
    flash_attention_recompute: bool = tgi(True, "and its recompute mode for prompts", flag=False)
    pad_sequence_to_multiple_of: int = tgi(128, "Gaudi's prompts are padded to multiples of this", flag=False, least=1)
    batch_bucket_size: int | None = tgi(None, "accepted: Gaudi has one decode shape", flag=False, least=1)
    prefill_batch_bucket_size: int | None = tgi(None, "Gaudi's prefills take multiples of this many rows", flag=False, least=1)
    batch_size_exponent_base: float | None = tgi(None, "growth of the rows of Gaudi's prefills", flag=False, least=1.1)
    seq_len_exponent_base: float | None = tgi(None, "growth of the lengths of Gaudi's prefills", flag=False, least=1.1)
    vllm_exponential_bucketing: bool | None = tgi(None, "Gaudi's shapes grow by a factor, not by a step", flag=False)
    vllm_prompt_bs_bucket_min: int | None = tgi(None, "least rows of Gaudi's prefills", flag=False, least=1)
    vllm_prompt_bs_bucket_step: int | None = tgi(None, "step between rows of Gaudi's prefills", flag=False, least=1)
    vllm_prompt_bs_bucket_max: int | None = tgi(None, "most rows of Gaudi's prefills", flag=False, least=1)
    vllm_prompt_bs_bucket_limit: int | None = tgi(None, "how many different rows of Gaudi's prefills", flag=False, least=1)
    vllm_prompt_seq_bucket_min: int | None = tgi(None, "least tokens of Gaudi's prefills", flag=False, least=1)
    vllm_prompt_seq_bucket_step: int | None = tgi(None, "step between tokens of Gaudi's prefills", flag=False, least=1)
    vllm_prompt_seq_bucket_max: int | None = tgi(None, "most tokens of Gaudi's prefills", flag=False, least=1)
    vllm_prompt_seq_bucket_limit: int | None = tgi(None, "how many different tokens of Gaudi's prefills", flag=False, least=1)
    vllm_decode_block_bucket_min: int | None = tgi(None, "least blocks of 128 that Gaudi's steps read", flag=False, least=1)
    vllm_decode_block_bucket_step: int | None = tgi(None, "step between blocks of 128 that Gaudi's steps read", flag=False, least=1)
    vllm_decode_block_bucket_max: int | None = tgi(None, "most blocks of 128 that Gaudi's steps read", flag=False, least=1)
    vllm_decode_block_bucket_limit: int | None = tgi(None, "how many different blocks of 128 that Gaudi's steps read", flag=False, least=1)
    vllm_skip_warmup: bool = tgi(False, "a Gaudi serves at once and compiles while it serves", flag=False)
    warmup_enabled: bool = tgi(True, "false means VLLM_SKIP_WARMUP=true", flag=False)
    skip_tokenizer_in_tgi: bool = tgi(False, "texts are token ids, separated by commas", flag=False)
    quant_config: str | None = tgi(None, "FP8 configuration of a Gaudi model", flag=False)
    habana_visible_modules: str | None = tgi(None, "Gaudi modules this host may use, for example 0,1", flag=False)
    pt_hpu_recipe_cache_config: str | None = tgi(None, "Gaudi's recipe cache: folder,delete,megabytes", flag=False)

    hostname: str = tgi("0.0.0.0", "address to listen on")
    port: int = tgi(3000, "port to listen on", least=0, most=65535)
    api_key: str | None = tgi(None, "key that clients must send", secret=True)
    api_keys_file: str | None = own(None, "file with more keys, one `NAME KEY [running=N] [queued=N]` a line")
    cors_allow_origin: tuple[str, ...] = tgi((), "origins a browser may come from; any when unset")
    json_output: bool = tgi(False, "log in JSON")
    log_level: str = tgi("info", "least level of a log line", flag=False, choices=("trace", "debug", "info", "warn", "error"))
    compute_type: str | None = tgi(None, "what the header x-compute-type says", flag=False)
    drain_s: float = tgi(90.0, "seconds running requests get to end", names=("GRACEFUL_TERMINATION_TIMEOUT", "FARM_DRAIN_S"), least=0)
    env: bool = tgi(False, "print the settings at start", names=())

    farm: str = own("farm", "name of the farm; two farms may share a Redis", names=("FARM",))
    backend: str = own("cpu", "engine of a worker")
    workers: int = own(1, "workers of one host", names=("WORKERS",), least=0, most=256)
    served_name: str = own("", "name under which the model is served; the model id when unset")
    redis_url: str = own("", "redis://, rediss:// or unix:// address of the broker", names=("REDIS_URL",), secret=True)
    redis_password: str = own("", "password of the broker", flag=False, secret=True)
    jobs_url: str = own("", "redis:// or rediss:// address of the jobs' database; the broker's database 1 when unset", secret=True)
    jobs_password: str = own("", "password of the jobs' database", flag=False, secret=True)
    lease_s: float = own(10.0, "seconds without a sign of life after which a worker's requests are taken over", least=0.1)
    compile_lease_s: float = own(600.0, "lease of a worker that compiles while it serves", least=0.1)
    orphan_s: float = own(15.0, "seconds after which requests of a lost gateway are cancelled", least=0.1)
    queue_factor: float = own(4.0, "waiting requests per slot of a lane", least=0)
    queue_when_cold: bool = own(False, "let requests wait while no worker is ready")
    lanes: tuple[int, ...] = own((), "length classes in tokens; the worker's own length when unset", least=2)
    max_prefill_share: float = own(0.4, "most of the time that prefill may take beside running rows", least=0, most=1)
    waste_max: float = own(0.3, "most padding of a prefill, as a share", least=0, most=1)
    exact_max_tokens: int = own(256, "shown tokens up to which a takeover replays", least=0)
    slo_ttft_ms: float = own(2000.0, "a good request shows its first token within this many milliseconds", least=0)
    slo_itl_ms: float = own(200.0, "and has this mean time between tokens, in milliseconds", least=0)
    metrics_port: int = own(0, "port of a worker's /metrics; any free one when 0", least=0, most=65535)
    gateway_id: str | None = own(None, "id of this gateway; host and random when unset")
    worker_name: str | None = own(None, "name of this worker; host and random when unset")
    worker_number: int = own(1, "which of its host's workers this is", flag=False, least=1)
    allow_compile: bool = own(False, "compile a Neuron model that is not in the hub's cache, up to an hour")
    double: str = own("", "what a device double does: name=value, separated by commas")
    selftest: bool = own(False, "check this worker's device against the CPU, print a verdict and end")
    oracle_prefill_ms: float = own(0.0, "time the oracle takes for a prefill", least=0)
    oracle_step_ms: float = own(0.0, "time the oracle takes for a step", least=0)
    oracle_salted: bool = own(False, "tokens of the oracle depend on its worker")
    one_host: bool = own(False, "set by `tokenfarm up` for what it starts", flag=False)
    listen_fd: int | None = own(None, "listening socket handed over by the parent", flag=False, least=0)
    parent_fd: int | None = own(None, "pipe that closes when the parent ends", flag=False, least=0)
    status_fd: int | None = own(None, "pipe on which an engine process reports to its supervisor", flag=False, least=0)
    blame_fd: int | None = own(None, "memory in which an engine process notes what its device does", flag=False, least=0)

    notes: tuple[str, ...] = ()
    """Lines to log once at start: what was given and has no effect. Empty in a child of `tokenfarm up`, whose parent says them."""

    @classmethod
    def from_env(
        cls, env: Mapping[str, str], argv: Sequence[str] = (), *, defaults: Mapping[str, Any] | None = None, program: str = "tokenfarm"
    ) -> Settings:
        """Reads and checks everything; raises `StartError`, or `SystemExit(0)` after `--help` and `--version`."""
        command = flags.parser((*OPTIONS, *WITHOUT_MEANING), program, version())
        given = flags.read((*OPTIONS, *WITHOUT_MEANING), command, env, argv)
        notes = [f"{given.pop(option.name)[0]} has no effect here" for option in WITHOUT_MEANING if option.name in given]
        notes += [f"{key} is not a setting" for key in env if key not in OWN_ENVS and _looks_own(key)]
        if "hostname" in given and not _is_address(given["hostname"][1]):
            name = given.pop("hostname")[1]
            if name != gethostname():  # containers and some shells set it to this host's name
                notes.append(f"HOSTNAME={name} is not an IP address and is ignored")
        values = {
            **(defaults or {}),
            **{name: value for name, (_, value) in given.items()},
            "notes": () if "parent_fd" in given else tuple(notes),
        }
        settings = cls(**values)
        check(settings)
        return settings

    @property
    def name(self) -> str:
        """Under which name the model is served."""
        return self.served_name or self.model_id

    @property
    def skip_warmup(self) -> bool:
        """Whether an engine that can shall serve at once, as either of TGI's two names says."""
        return self.vllm_skip_warmup or not self.warmup_enabled

    @property
    def broker_url(self) -> str:
        """Where the broker is, with its password: a secret."""
        return _with_password(self.redis_url or DEFAULT_REDIS_URL, self.redis_password)

    @property
    def jobs_broker_url(self) -> str:
        """Where the arq jobs are kept, with the password: a secret."""
        if self.jobs_url:
            return _with_password(self.jobs_url, self.jobs_password)
        if self.broker_url.startswith("unix:"):
            return f"{self.broker_url}{'&' if '?' in self.broker_url else '?'}db=1"
        return urlunsplit(urlsplit(self.broker_url)._replace(path="/1"))

    def secrets(self) -> tuple[str, ...]:
        """The values no log line may carry."""
        in_urls = (urlsplit(url).password for url in (self.redis_url, self.jobs_url))
        found = (self.hf_token, self.api_key, self.redis_password, self.jobs_password, *in_urls)
        return tuple({form: None for value in found if value for form in (value, unquote(value), quote(value, safe=""))})

    def describe(self) -> str:
        """One line per setting, for people; secrets only as `set`."""
        lines = []
        for option in OPTIONS:
            value = getattr(self, option.name)
            lines.append(f"{(*option.envs, option.name)[0]}={'set' if option.secret and value else value}")
        return "\n".join(lines)


def check(settings: Settings) -> None:
    """Raises `StartError` for settings that contradict each other (TGI reference §4.4, §6.2)."""
    limits = [
        ("max_input_tokens", "<", "max_total_tokens"),
        ("max_input_tokens", "<=", "max_batch_prefill_tokens"),
        ("max_batch_prefill_tokens", "<=", "max_batch_total_tokens"),
        ("max_total_tokens", "<=", "max_batch_total_tokens"),
    ]
    for low, relation, high in limits:
        a, b = getattr(settings, low), getattr(settings, high)
        if a is not None and b is not None and (a > b or (a == b and relation == "<")):
            raise StartError(f"Invalid argument: `{low}`({a}) must be {relation} `{high}`({b})")
    if settings.sharded and (settings.num_shard or 1) < 2:
        raise StartError(f"Invalid argument: SHARDED=true, allowed is false with NUM_SHARD={settings.num_shard or 1}")
    if settings.max_total_tokens is not None and settings.lanes and settings.lanes[-1] > settings.max_total_tokens:
        raise StartError(
            f"Invalid argument: FARM_LANES={settings.lanes[-1]}, allowed is at most `max_total_tokens`({settings.max_total_tokens})"
        )
    if settings.redis_password and not settings.redis_url:
        raise StartError("Invalid argument: FARM_REDIS_PASSWORD, allowed is only with REDIS_URL")
    for key, url in (("REDIS_URL", settings.redis_url), ("FARM_JOBS_URL", settings.jobs_url)):
        if url and urlsplit(url).scheme not in ("redis", "rediss", "unix"):
            raise StartError(f"Invalid argument: {key}, allowed is redis://host:port, rediss://host:port or unix:///path")


def _with_password(address: str, password: str) -> str:
    if not password:
        return address
    url = urlsplit(address)
    user, _, host = url.netloc.rpartition("@")
    return urlunsplit(url._replace(netloc=f"{user.split(':')[0]}:{quote(password, safe='')}@{host}"))


def version() -> str:
    """The installed version of the farm."""
    return installed_version("tokenfarm")


def _table(cls: type[Any]) -> tuple[Option, ...]:
    return tuple(_row(entry) for entry in fields(cls) if entry.metadata)


def _row(entry: Field[Any]) -> Option:
    spec = dict(entry.metadata)
    prefix = "FARM_" if spec.get("own") else ""
    envs = spec.pop("names", (prefix + entry.name.upper(),))
    words = [entry.name] if prefix or not envs else [name for name in envs if not name.startswith("FARM_")]
    flag_names = tuple("--" + word.lower().replace("_", "-") for word in words) if spec.pop("flag", True) else ()
    return Option(entry.name, str(entry.type).removesuffix(" | None"), spec.pop("help"), envs, flag_names, entry.default, **spec)


OPTIONS = _table(Settings)
"""Every setting with a meaning here."""

WITHOUT_MEANING = tuple(
    Option(name, kind, "accepted, has no effect here", (name.upper(),), ("--" + name.replace("_", "-"),) if flag else ())
    for kind, flag, names in (
        ("int", True, "validation_workers speculate prometheus_port master_port"),
        ("float", True, "cuda_memory_fraction rope_factor watermark_gamma watermark_delta"),
        ("bool", True, "disable_custom_kernels ngrok"),
        ("tuple[int, ...]", True, "cuda_graphs"),
        ("str", True, "kv_cache_dtype shard_uds_path master_addr weights_cache_override rope_scaling lora_adapters usage_stats"),
        ("str", True, "otlp_endpoint otlp_service_name ngrok_authtoken ngrok_edge"),
        ("str", False, "max_image_fetch_size log_colorize attention prefix_caching prefill_chunking tgi_wiggle_room"),
    )
    for name in names.split()
)
"""What TGI's launcher takes and this farm has no use for."""

OWN_ENVS = frozenset(env for option in OPTIONS for key in option.envs for env in (key, f"{key}_FILE" if option.secret else key))


def _looks_own(key: str) -> bool:
    """A misspelt setting, and not what Kubernetes sets for a service called farm."""
    return key.startswith("FARM_") and not re.search(r"_PORT|_SERVICE_", key.removeprefix("FARM"))


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True
