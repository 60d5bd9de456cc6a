"""The 37 behaviours of TGI that differ from what its documents suggest (TGI reference §8), and what the farm does about each."""

from __future__ import annotations

from typing import NamedTuple

GATEWAY = "tests/gateway/"
REFUSED = (f"{GATEWAY}test_chat.py::test_refusals_are_plain_answers_also_for_streams",)
NO_GRAMMAR = (f"{GATEWAY}test_admission.py::test_a_grammar_is_refused_by_name",)
WORKERS = "tests/workers/"


class Quirk(NamedTuple):
    """`choice` M: matched, L: more lenient, F: fixed. `tests` prove it; with a `part`, that it is refused until then."""

    id: int
    choice: str
    what: str
    tests: tuple[str, ...] = ()
    part: str = ""


QUIRKS = (
    Quirk(
        1, "F", "a stream's early errors have their own status; later ones are its last event",
        (f"{GATEWAY}test_stream.py::test_errors_before_the_first_byte_have_their_status",
         f"{GATEWAY}test_stream.py::test_an_error_in_mid_stream_is_its_last_event"),
    ),
    Quirk(
        2, "F", "the real status inside an error event of the OpenAI routes",
        (f"{GATEWAY}test_chat.py::test_an_error_in_mid_stream_has_its_status_and_ends_with_done",),
    ),
    Quirk(
        3, "L", "finish reasons: TGI's names on /generate, OpenAI's on /v1",
        (f"{GATEWAY}test_generate.py::test_details",
         f"{GATEWAY}test_chat.py::test_stop_text_is_cut_alike_whole_and_streamed_and_kept_on_native_routes",
         f"{GATEWAY}test_completions.py::test_several_prompts_come_in_order_and_headers_are_sums"),
    ),
    Quirk(4, "F", "no tool stream without a finish reason: tools are refused", REFUSED, part="C2"),
    Quirk(5, "F", "unique ids", (f"{GATEWAY}test_chat.py::test_the_answer", f"{GATEWAY}test_chat.py::test_chunks")),
    Quirk(6, "M", "role in every delta", (f"{GATEWAY}test_chat.py::test_chunks",)),
    Quirk(7, "M", "usage null on every chunk", (f"{GATEWAY}test_chat.py::test_usage_comes_when_asked_for_and_agrees",)),
    Quirk(
        8, "F", "stop text is kept on native routes, cut on /v1, and found wherever it ends",
        (f"{GATEWAY}test_chat.py::test_stop_text_is_cut_alike_whole_and_streamed_and_kept_on_native_routes",
         f"{GATEWAY}test_stopping.py::test_the_text_is_all_before_the_first_stop_string",
         f"{GATEWAY}test_generate.py::test_the_text_is_of_tokens_that_are_not_special",
         f"{GATEWAY}test_farm.py::test_a_stop_string_ends_it_and_stays"),
    ),
    Quirk(
        9, "F", "a text cut inside a character loses only that character",
        ("tests/compat/test_text.py::test_a_text_cut_inside_a_character_loses_only_that_character",),
    ),
    Quirk(
        10, "M", "tokens with no text while bytes of a character are missing",
        (f"{GATEWAY}test_generate.py::test_details", "tests/compat/test_text.py::test_characters_appear_whole_after_empty_texts"),
    ),
    Quirk(
        11, "M", "no parameters: sampling; empty ones: greedy",
        (f"{GATEWAY}test_generate.py::test_greedy_or_sampling",),
    ),
    Quirk(
        12, "M", "a temperature of 1.0 alone is greedy, and its seed is not reported",
        (f"{GATEWAY}test_generate.py::test_greedy_or_sampling",
         f"{GATEWAY}test_generate.py::test_the_seed_is_reported_only_when_sampling"),
    ),
    Quirk(
        13, "L", "top_p of 0 and 1 is refused on /generate; on /v1 1 means off",
        (f"{GATEWAY}test_refusals.py::test_messages", f"{GATEWAY}test_chat.py::test_sampling_as_openai_means_it",
         f"{GATEWAY}test_chat.py::test_refusals_are_plain_answers_also_for_streams"),
    ),
    Quirk(
        14, "L", "stop may be a string, logit_bias a map, null equals absent",
        (f"{GATEWAY}test_chat.py::test_sampling_as_openai_means_it",
         f"{GATEWAY}test_chat.py::test_null_is_absent_and_unknown_fields_are_ignored",
         f"{GATEWAY}test_fields.py::test_stop_may_be_a_string_a_list_or_null",
         f"{GATEWAY}test_fields.py::test_null_equals_absent_everywhere"),
    ),
    Quirk(
        15, "F", "presence_penalty is OpenAI's: taken from tokens that were generated already",
        (f"{GATEWAY}test_chat.py::test_sampling_as_openai_means_it",
         f"{WORKERS}test_sampling.py::test_every_combination_follows_tgis_order"),
    ),
    Quirk(
        16, "M", "frequency_penalty counts the prompt and is divided by the length",
        (f"{WORKERS}test_sampling.py::test_frequency_counts_the_prompt_and_is_divided_by_the_length",),
    ),
    Quirk(17, "L", "every shape of response_format: text is taken, the others are refused", REFUSED, part="C2"),
    Quirk(18, "F", "no tool call with lost definitions or usage: tools are refused", REFUSED, part="C2"),
    Quirk(
        19, "F", "tool calls and their ids reach the template",
        (f"{GATEWAY}test_chat.py::test_templates_get_parts_tool_calls_and_results",),
    ),
    Quirk(
        20, "F", "chat_template.jinja, template arguments, block trimming",
        (f"{GATEWAY}test_templating.py::test_it_is_rendered_as_transformers_does",
         f"{GATEWAY}test_templating.py::test_which_template",
         f"{GATEWAY}test_templating.py::test_special_tokens_and_arguments_reach_it"),
    ),
    Quirk(
        21, "M", "any model name is served",
        (f"{GATEWAY}test_generate.py::test_any_model_name_is_served", f"{GATEWAY}test_chat.py::test_the_answer"),
    ),
    Quirk(
        22, "M", "prompt log-probabilities need a flag and are empty without",
        (f"{GATEWAY}test_generate.py::test_prefill_needs_the_flag_and_is_silently_empty_without",),
    ),
    Quirk(23, "F", "a request is counted once", (f"{GATEWAY}test_ops.py::test_metrics_count_what_happened",)),
    Quirk(24, "F", "the prometheus port is not bound", (f"{GATEWAY}test_process.py::test_the_prometheus_port_is_not_bound",)),
    Quirk(
        25, "F", "keys are compared exactly, browsers may send them, /chat_tokenize asks for one",
        (f"{GATEWAY}test_chat.py::test_chat_tokenize",
         f"{GATEWAY}test_auth.py::test_the_key_is_compared_exactly", f"{GATEWAY}test_refusals.py::test_a_wrong_key_is_401_with_nothing",
         f"{GATEWAY}test_ops.py::test_browsers_may_send_their_key"),
    ),
    Quirk(
        26, "F", "max_new_tokens above 1,024 is exact",
        (f"{GATEWAY}test_generate.py::test_max_new_tokens_unset_fills_the_context_and_set_is_exact",
         f"{GATEWAY}test_farm.py::test_more_than_1024_tokens_are_exact"),
    ),
    Quirk(27, "F", "a bad grammar harms no neighbour: any is refused before it is queued", NO_GRAMMAR, part="C2"),
    Quirk(
        28, "M", "offsets of /tokenize are bytes",
        (f"{GATEWAY}test_generate.py::test_tokenize", f"{GATEWAY}test_tokenizing.py::test_spans_are_bytes_of_the_text"),
    ),
    Quirk(
        29, "F", "choices of completions in order",
        (f"{GATEWAY}test_completions.py::test_several_prompts_come_in_order_and_headers_are_sums",),
    ),
    Quirk(
        30, "M", "the root answers in a list, with the prompt",
        (f"{GATEWAY}test_generate.py::test_the_root_answers_in_a_list_with_the_prompt",),
    ),
    Quirk(
        31, "M", "statuses of bodies no route takes; the texts are in JSON, as clients need it",
        (f"{GATEWAY}test_refusals.py::test_bodies_no_route_takes", f"{GATEWAY}test_refusals.py::test_other_content_types",
         f"{GATEWAY}test_refusals.py::test_a_body_over_the_limit"),
    ),
    Quirk(
        32, "F", "health, liveness and readiness are three routes, none asks the device",
        (f"{GATEWAY}test_ops.py::test_a_farm_without_workers_says_so_and_refuses_softly",
         f"{GATEWAY}test_process.py::test_sigterm_lets_streams_end_and_tells_the_balancer"),
    ),
    Quirk(
        33, "F", "Neuron: shapes as given or a stop; parameters as asked or refused",
        ("tests/neuron/test_artifact.py::test_a_setting_that_contradicts_the_artifact_names_both",
         "tests/neuron/test_farm.py::test_what_an_artifact_that_samples_on_the_device_cannot_do_is_refused"),
    ),
    Quirk(
        34, "M", "a space after data:, a comment after 15 s",
        (f"{GATEWAY}test_stream.py::test_the_bytes_of_a_stream",
         f"{GATEWAY}test_connection.py::test_a_silent_stream_gets_a_comment_after_each_silence"),
    ),
    Quirk(
        35, "M", "max_new_tokens unset fills the context",
        (f"{GATEWAY}test_generate.py::test_max_new_tokens_unset_fills_the_context_and_set_is_exact",),
    ),
    Quirk(
        36, "F", "one bad request of a batch fails alone",
        (f"{GATEWAY}test_generate.py::test_one_bad_request_of_a_batch_fails_alone",
         f"{WORKERS}test_sampling.py::test_nan_and_inf_are_reported_and_stay_in_their_row"),
    ),
    Quirk(37, "M", "/info.version is a plain version", (f"{GATEWAY}test_ops.py::test_info",)),
)  # fmt: skip
