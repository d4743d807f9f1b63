"""The model's tokenizer: byte-level BPE trained on generated questions and answers, ChatML special tokens, the chat template."""

import random

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from probes.traffic.questions import PICTURE_KINDS, picture_question
from probes.traffic.scenes import random_scene
from probes.traffic.texts import TEXT_KINDS, text_question

SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
SAMPLES = 1200  # generated questions of each kind that the merges are learnt from

CHAT_TEMPLATE = """\
{%- for message in messages -%}
{{ '<|im_start|>' + message.role + '\\n' }}
{%- if message.content is string -%}
{{ message.content }}
{%- else -%}
{%- for part in message.content -%}
{%- if part.type == 'text' -%}
{{ part.text }}
{%- elif part.type in ('image', 'image_url') -%}
{{ '<|vision_start|><|image_pad|><|vision_end|>' }}
{%- endif -%}
{%- endfor -%}
{%- endif -%}
{{ '<|im_end|>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{ '<|im_start|>assistant\\n' }}
{%- endif -%}
"""


def build_tokenizer() -> PreTrainedTokenizerFast:
    """Train the tokenizer; the same every time."""
    core = Tokenizer(models.BPE())
    digits, text = pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.pre_tokenizer = pre_tokenizers.Sequence([digits, text])
    core.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=1000, min_frequency=5, initial_alphabet=alphabet, show_progress=False)
    core.train_from_iterator(_sample_lines(), trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core,
        pad_token="<|endoftext|>",
        eos_token="<|im_end|>",
        additional_special_tokens=[token for token in SPECIALS if token not in ("<|endoftext|>", "<|im_end|>")],
        model_max_length=1024,
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def _sample_lines() -> list[str]:
    rng = random.Random("tokenizer")
    questions = [picture_question(random_scene(rng, 2), rng, kind) for kind in PICTURE_KINDS for _ in range(SAMPLES)]
    questions += [text_question(rng, kind) for kind in TEXT_KINDS for _ in range(SAMPLES)]
    lines = [line for question in questions if question for line in (question.prompt, question.answer)]
    return ["user\n", "assistant\n", "system\n"] * 10 + lines
