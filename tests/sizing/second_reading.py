"""A second reading of configs, written from the model classes and without the code under test.

It answers in the simplest terms: elements of a token by window for one GPU. ``None`` is no answer: a fact is missing,
contradictory or not of its kind, so that any number would be a guess. Rules are spelled out type by type on purpose.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Config = dict[str, Any]
Reading = dict[str, int]
"""Elements of a token in each window; ``full`` is the whole sequence. Index keys count in bytes, under ``index``."""

# Absent keys: layers, hidden size, heads, KV heads (None: as heads), head size (None: hidden / heads), window.
CLASS_DEFAULTS: dict[str, tuple[int, int, int, int | None, int | None, int | None]] = {
    "llama": (32, 4096, 32, None, None, None),
    "llama4_text": (48, 5120, 40, 8, 128, None),
    "qwen2": (32, 4096, 32, 32, None, 4096),
    "qwen2_moe": (24, 2048, 16, 16, None, 4096),
    "qwen2_5_vl": (80, 8192, 64, 8, None, 4096),
    "qwen3": (32, 4096, 32, 32, 128, 4096),
    "qwen3_moe": (24, 2048, 32, 4, None, 4096),
    "qwen3_vl_moe_text": (24, 2048, 16, 16, 128, None),
    "qwen3_next": (48, 2048, 16, 2, 256, None),
    "qwen3_5_text": (32, 4096, 16, 4, 256, None),
    "qwen3_5_moe_text": (40, 2048, 16, 2, 256, None),
    "gemma": (28, 3072, 16, 16, 256, None),
    "gemma2": (26, 2304, 8, 4, 256, 4096),
    "gemma3_text": (26, 2304, 8, 4, 256, 4096),
    "gemma3n_text": (35, 2048, 8, 2, 256, 512),
    "gemma4_text": (30, 2304, 8, 4, 256, 512),
    "mistral": (32, 4096, 32, 8, None, 4096),
    "ministral3": (34, 4096, 32, 8, 128, None),
    "mixtral": (32, 4096, 32, 8, None, None),
    "phi3": (32, 3072, 32, None, None, None),
    "falcon": (32, 4544, 71, None, None, None),
    "olmo2": (32, 4096, 32, None, None, None),
    "olmo3": (32, 4096, 32, None, None, 4096),
    "gpt_oss": (36, 2880, 64, 8, 64, 128),
    "internlm3": (48, 4096, 32, 2, 128, None),
    "ernie4_5_moe": (28, 2560, 20, 4, None, None),
    "seed_oss": (64, 4096, 80, 8, 128, None),
    "exaone4": (32, 4096, 32, 32, None, 4096),
    "granite": (32, 4096, 32, None, None, None),
    "cohere": (40, 8192, 64, None, None, None),
    "qwen3_vl_text": (32, 4096, 32, 32, 128, None),
    "smollm3": (36, 2048, 16, 4, None, None),
    "glm4": (40, 4096, 32, 2, 128, None),
    "dots1": (62, 4608, 32, 32, None, 4096),
    "hunyuan_v1_moe": (32, 4096, 32, None, None, None),
    "deepseek_v2": (32, 4096, 32, None, None, None),
    "laguna": (40, 2048, 48, 8, 128, 512),
    "minimax_m2": (62, 3072, 48, 8, 128, None),
    "step3_text": (61, 7168, 64, 1, 256, None),
    "nemotron_h": (52, 4096, 32, 8, 128, None),
    "jamba": (32, 4096, 32, 8, None, None),
}
NO_DEFAULTS = (
    "qwen3_omni_moe_text",
    "minimax_text_01",
    "chatglm",
    "glm4_moe",
    "internlm2",
    "mimo",
    "baichuan",
    "step3p5",
    "nemotron-nas",
    "minimax_m3",
    "dbrx",
)
LATENT: dict[str, tuple[int | None, int | None, int | None]] = {
    # layers, latent, rotary
    "deepseek_v2": (32, 512, 64),
    "deepseek_v3": (61, 512, 64),
    "deepseek_v32": (61, 512, 64),
    "glm4_moe_lite": (47, 512, 64),
    "glm_moe_dsa": (78, 512, 64),
    "kimi_k2": (None, None, None),
}
NAMES = {
    "layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
    "heads": ("num_attention_heads", "n_head", "n_heads"),
    "kv": ("num_key_value_heads", "num_kv_heads"),
    "hidden": ("hidden_size", "n_embd", "n_embed", "d_model"),
    "size": ("head_dim", "attention_head_dim"),
}


class NoAnswerError(Exception):
    """The config does not tell."""


def read(config: Config) -> Reading | None:
    """Elements by window, or None."""
    try:
        return _read(_text_part(config))
    except NoAnswerError:
        return None


def _text_part(config: Config) -> Config:
    part, outer = config, config.get("model_type")
    while True:
        inner = [
            part[key] for key in ("text_config", "llm_config", "language_config", "thinker_config") if part.get(key)
        ]
        if not inner:
            return part if "model_type" in part else {**part, "model_type": outer}
        if len(inner) > 1 or not isinstance(inner[0], dict):
            raise NoAnswerError
        part = inner[0]


def _whole(value: object, least: int = 1) -> int:
    if type(value) is not int or not least <= value < 2**31:
        raise NoAnswerError
    return value


class _Facts:
    """Numbers of one config with the defaults of its class."""

    def __init__(self, config: Config) -> None:
        self.config = config
        kind = config.get("model_type")
        self.kind = kind if isinstance(kind, str) else ""
        known = CLASS_DEFAULTS.get(self.kind)
        names = ("layers", "hidden", "heads", "kv", "size", "window")
        self.defaults: dict[str, int | None] = dict(zip(names, known, strict=True)) if known else {}

    def one(self, fact: str, *more: str) -> object:
        """The value under any of its names; they must agree."""
        names = [name for name in (*more, *NAMES.get(fact, ())) if self.config.get(name) is not None]
        if not names:
            present = any(name in self.config for name in NAMES.get(fact, ()))
            return None if present else self.defaults.get(fact)
        values = [self.config[name] for name in names]
        if any(type(value) is not type(values[0]) or value != values[0] for value in values):
            raise NoAnswerError
        return values[0]

    @property
    def layers(self) -> int:
        return _whole(self.one("layers"))

    @property
    def heads(self) -> int:
        return _whole(self.one("heads"))

    def kv(self, *names: str) -> int:
        value = self.one("kv", *names)
        if value is None and self.kind in NO_DEFAULTS:
            raise NoAnswerError
        number = self.heads if value is None else _whole(value)
        if self.one("heads") is not None and self.heads % number:
            raise NoAnswerError
        return number

    @property
    def size(self) -> int:
        value = self.one("size")
        if value is not None:
            return _whole(value)
        hidden = _whole(self.one("hidden"))
        if hidden % self.heads:
            raise NoAnswerError
        return hidden // self.heads

    @property
    def window(self) -> int:
        return _whole(self.config.get("sliding_window", self.defaults.get("window")))


def _read(config: Config) -> Reading:
    facts = _Facts(config)
    if config.get("is_encoder_decoder") or config.get("compress_ratios"):
        raise NoAnswerError
    without = config.get("use_mla") is False or config.get("kv_lora_rank", 0) is None
    if facts.kind in LATENT and not (facts.kind == "deepseek_v2" and without):
        return _latent(facts)
    if facts.kind in SPECIAL:
        return SPECIAL[facts.kind](facts)
    if facts.kind in CLASS_DEFAULTS or facts.kind in NO_DEFAULTS or facts.kind == "deepseek_v2":
        return _grouped(facts, _kinds(facts))
    raise NoAnswerError


def _latent(facts: _Facts) -> Reading:
    layers, latent, rotary = LATENT[facts.kind]
    config = facts.config
    num_layers = _whole(facts.one("layers") if facts.one("layers") is not None else layers)
    each = _whole(config.get("kv_lora_rank", latent)) + _whole(config.get("qk_rope_head_dim", rotary))
    reading = {"full": num_layers * each}
    if facts.kind in ("deepseek_v32", "glm_moe_dsa"):
        types = config.get("indexer_types")
        listed = config.get("layer_types")
        if listed is not None and (not isinstance(listed, list) or len(listed) != num_layers):
            raise NoAnswerError
        if types is None:
            types = ["full"] * num_layers
        if not isinstance(types, list) or len(types) != num_layers or not set(map(str, types)) <= {"full", "shared"}:
            raise NoAnswerError
        size = _whole(config.get("index_head_dim", 128))
        reading["index"] = types.count("full") * (size + size // 128 * 4)
    return reading


def _grouped(facts: _Facts, kinds: list[str], kv: Callable[[str], int] | None = None) -> Reading:
    """Keys and values of each layer by its kind."""
    heads = kv or (lambda kind: facts.kv())
    reading: Reading = {}
    for kind in kinds:
        if kind in ("full", "sliding"):
            window = "full" if kind == "full" else str(facts.window)
            reading[window] = reading.get(window, 0) + 2 * heads(kind) * facts.size
    if not reading:
        raise NoAnswerError
    return reading


WORDS = {
    "full_attention": "full",
    "attention": "full",
    "chunked_attention": "full",
    "sliding_attention": "sliding",
    "linear_attention": "state",
    "mamba": "state",
    "moe": "",
    "mlp": "",
}


def _kinds(facts: _Facts) -> list[str]:
    """What each layer keeps."""
    config, kind = facts.config, facts.kind
    for key in ("layer_types", "layers_block_type"):
        listed = config.get(key)
        if listed is not None:
            if (
                not isinstance(listed, list)
                or not listed
                or any(not isinstance(w, str) or w not in WORDS for w in listed)
            ):
                raise NoAnswerError
            extra = 0
            if any(config.get(name) is not None for name in NAMES["layers"]):
                extra = len(listed) - facts.layers
            if extra and config.get("num_nextn_predict_layers") != extra:
                raise NoAnswerError
            kinds = [WORDS[word] for word in listed[: len(listed) - extra]]
            return _shared(facts, kinds)
    return _shared(facts, _kinds_by_rule(facts, facts.layers if kind != "nemotron_h" else 0))


def _shared(facts: _Facts, kinds: list[str]) -> list[str]:
    if facts.kind == "gemma4_text":
        kinds[-1] = "full"
    if facts.kind in ("gemma3n_text", "gemma4_text"):
        default = 15 if facts.kind == "gemma3n_text" else 0
        value = facts.config.get("num_kv_shared_layers", default)
        number = _whole(0 if value is None and not default else value, 0)
        if number >= len(kinds):
            raise NoAnswerError
        kinds = [*kinds[: len(kinds) - number], *[""] * number]
    return kinds


def _kinds_by_rule(facts: _Facts, count: int) -> list[str]:
    config, kind = facts.config, facts.kind
    window = config.get("sliding_window", facts.defaults.get("window"))
    if kind == "nemotron_h":
        pattern = config.get("hybrid_override_pattern")
        if not isinstance(pattern, str) or set(pattern) - set("M*-E") or not pattern:
            raise NoAnswerError
        if facts.config.get("num_hidden_layers") is not None and facts.layers != len(pattern):
            raise NoAnswerError
        return [{"*": "full", "M": "state"}.get(letter, "") for letter in pattern]
    if kind in ("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text"):
        every = _whole(config.get("full_attention_interval", 4))
        return ["full" if i % every == every - 1 else "state" for i in range(count)]
    if kind == "jamba":
        period, offset = _whole(config.get("attn_layer_period", 8)), _whole(config.get("attn_layer_offset", 4), 0)
        return ["full" if i % period == offset else "state" for i in range(count)]
    if kind in ("qwen2", "qwen2_moe", "qwen2_5_vl", "qwen3", "qwen3_moe", "mimo", "dots1", "qwen3_omni_moe_text"):
        switch = config.get("use_sliding_window") or False
        if window is None:
            return ["full"] * count
        if not isinstance(switch, bool):
            raise NoAnswerError
        if not switch:
            return ["full"] * count
        first = _whole(config.get("max_window_layers", 28), 0)
        return ["sliding" if i >= first else "full" for i in range(count)]
    every = {"gemma2": 2, "gemma3_text": 6, "gemma3n_text": 5, "gemma4_text": 6, "gpt_oss": 2, "olmo3": 4, "exaone4": 4}
    if kind in every and window is not None:
        pattern = config.get("sliding_window_pattern", every[kind])
        if isinstance(pattern, str) and pattern and set(pattern) <= {"L", "G"}:
            kinds = [{"L": "sliding", "G": "full"}[pattern[i % len(pattern)]] for i in range(count)]
            return [*kinds[:-1], "full"]
        period = _whole(pattern)
        return ["full" if i % period == period - 1 else "sliding" for i in range(count)]
    if kind in ("mistral", "mixtral", "ministral3", "phi3") and window is not None:
        return ["sliding"] * count
    return ["full"] * count


# -- types with rules of their own ----------------------------------------------------------------------------------


def _falcon(facts: _Facts) -> Reading:
    config = facts.config
    for key in ("multi_query", "new_decoder_architecture"):
        if config.get(key) is not None and not isinstance(config[key], bool):
            raise NoAnswerError
    one = config.get("multi_query", True) and not config.get("new_decoder_architecture", False)
    return {"full": facts.layers * 2 * facts.size * (1 if one else facts.kv())}


def _gemma4(facts: _Facts) -> Reading:
    config = facts.config
    own = config.get("attention_k_eq_v", False)
    if own is not None and not isinstance(own, bool):
        raise NoAnswerError
    large = config.get("global_head_dim", 512)
    size = facts.size if large is None else _whole(large)
    heads = facts.kv()
    if own and config.get("num_global_key_value_heads") is not None:
        heads = _whole(config["num_global_key_value_heads"])
    reading: Reading = {}
    for kind in _kinds(facts):
        if kind == "full":
            reading["full"] = reading.get("full", 0) + 2 * heads * size
        elif kind == "sliding":
            key = str(facts.window)
            reading[key] = reading.get(key, 0) + 2 * facts.kv() * facts.size
    return reading


def _nas(facts: _Facts) -> Reading:
    blocks = facts.config.get("block_configs")
    if not isinstance(blocks, list) or len(blocks) != facts.layers:
        raise NoAnswerError
    reading: Reading = {}
    for block in blocks:
        attention = block.get("attention") if isinstance(block, dict) else None
        if not isinstance(attention, dict):
            raise NoAnswerError
        if attention.get("no_op") is True or attention.get("replace_with_linear") is True:
            continue
        window = attention.get("window_length")
        key = "full" if window is None else str(_whole(window))
        group = _whole(attention.get("n_heads_in_group"))
        if facts.heads % group:
            raise NoAnswerError
        reading[key] = reading.get(key, 0) + 2 * facts.size * (facts.heads // group)
    if not reading:
        raise NoAnswerError
    return reading


def _dbrx(facts: _Facts) -> Reading:
    attention = facts.config.get("attn_config")
    if not isinstance(attention, dict):
        raise NoAnswerError
    heads = _whole(attention.get("kv_n_heads"))
    if facts.heads % heads:
        raise NoAnswerError
    return {"full": facts.layers * 2 * heads * facts.size}


def _baichuan(facts: _Facts) -> Reading:
    return {"full": facts.layers * 2 * facts.heads * facts.size}


def _step3(facts: _Facts) -> Reading:
    groups = facts.config.get("num_attention_groups", 1)
    if facts.one("heads") is not None and facts.heads % _whole(groups):
        raise NoAnswerError
    return {"full": facts.layers * 2 * _whole(groups) * facts.size}


def _chatglm(facts: _Facts) -> Reading:
    config = facts.config
    many, groups = config.get("multi_query_attention"), config.get("multi_query_group_num")
    if many is not None and not isinstance(many, bool):
        raise NoAnswerError
    if "multi_query_attention" not in config and groups is not None:
        raise NoAnswerError
    size = config.get("kv_channels")
    if size is None:
        if _whole(facts.one("hidden")) % facts.heads:
            raise NoAnswerError
        size = _whole(facts.one("hidden")) // facts.heads
    heads = _whole(groups) if many else facts.heads
    if facts.one("heads") is not None and facts.heads % heads:
        raise NoAnswerError
    return {"full": _whole(config.get("num_layers")) * 2 * heads * _whole(size)}


def _hunyuan(facts: _Facts) -> Reading:
    share, every = facts.config.get("use_cla"), 1
    if share is not None and not isinstance(share, bool):
        raise NoAnswerError
    if share:
        every = _whole(facts.config.get("cla_share_factor"))
    return {"full": -(-facts.layers // every) * 2 * facts.kv() * facts.size}


def _kimi_linear(facts: _Facts) -> Reading:
    linear = facts.config.get("linear_attn_config")
    if not isinstance(linear, dict):
        raise NoAnswerError
    full, states = linear.get("full_attn_layers"), linear.get("kda_layers")
    if not isinstance(full, list) or not isinstance(states, list):
        raise NoAnswerError
    if sorted(map(_whole, [*full, *states])) != list(range(1, facts.layers + 1)):
        raise NoAnswerError
    each = _whole(facts.config.get("kv_lora_rank")) + _whole(facts.config.get("qk_rope_head_dim"))
    return {"full": len(full) * each}


def _minimax(facts: _Facts) -> Reading:
    kinds = facts.config.get("attn_type_list")
    if not isinstance(kinds, list) or len(kinds) != facts.layers or any(kind not in (0, 1) for kind in kinds):
        raise NoAnswerError
    return {"full": sum(kinds) * 2 * facts.kv() * facts.size}


def _step3p5(facts: _Facts) -> Reading:
    config, other = facts.config, facts.config.get("attention_other_setting")
    full = _whole(config.get("num_attention_groups"))
    if facts.one("heads") is not None and facts.heads % full:
        raise NoAnswerError
    reading: Reading = {}
    for kind in _kinds(facts):
        if kind == "full":
            reading["full"] = reading.get("full", 0) + 2 * full * facts.size
        elif kind == "sliding":
            if not isinstance(other, dict):
                raise NoAnswerError
            key, each = str(facts.window), _whole(other.get("num_attention_groups")) * _whole(other.get("head_dim"))
            reading[key] = reading.get(key, 0) + 2 * each
    return reading


SPECIAL: dict[str, Callable[[_Facts], Reading]] = {
    "falcon": _falcon,
    "gemma4_text": _gemma4,
    "nemotron-nas": _nas,
    "dbrx": _dbrx,
    "baichuan": _baichuan,
    "step3_text": _step3,
    "step3p5": _step3p5,
    "chatglm": _chatglm,
    "hunyuan_v1_moe": _hunyuan,
    "kimi_linear": _kimi_linear,
    "minimax_text_01": _minimax,
}
