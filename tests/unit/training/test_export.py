"""The exported checkpoint has Kimi-K2.6's layout, standard file formats, and can be read back."""

import json
import stat

import pytest
import torch
from toy import toy_checkpoint, toy_model
from training import export, int4, restore
from training.shape import MINI, TOY

from halfbyte.checkpoint.folder import open_checkpoint
from halfbyte.families.kimi_k25.geometry import release_shards
from halfbyte.families.model import describe
from halfbyte.inspect.inspection import inspect, open_source

# Every key of text_config in Kimi-K2.6's config.json but auto_map, which names code.
K26_TEXT_KEYS = set(
    """
    _name_or_path add_cross_attention architectures attention_bias attention_dropout aux_loss_alpha bad_words_ids
    begin_suppress_tokens bos_token_id chunk_size_feed_forward cross_attention_hidden_size decoder_start_token_id
    diversity_penalty do_sample dtype early_stopping encoder_no_repeat_ngram_size eos_token_id ep_size
    exponential_decay_length_penalty finetuning_task first_k_dense_replace forced_bos_token_id forced_eos_token_id
    hidden_act hidden_size id2label initializer_range intermediate_size is_decoder is_encoder_decoder kv_lora_rank
    label2id length_penalty max_length max_position_embeddings min_length model_type moe_intermediate_size
    moe_layer_freq n_group n_routed_experts n_shared_experts no_repeat_ngram_size norm_topk_prob num_attention_heads
    num_beam_groups num_beams num_experts_per_tok num_hidden_layers num_key_value_heads num_nextn_predict_layers
    num_return_sequences output_attentions output_hidden_states output_scores pad_token_id prefix pretraining_tp
    problem_type pruned_heads q_lora_rank qk_nope_head_dim qk_rope_head_dim quantization_config remove_invalid_values
    repetition_penalty return_dict return_dict_in_generate rms_norm_eps rope_scaling rope_theta routed_scaling_factor
    scoring_func sep_token_id seq_aux suppress_tokens task_specific_params temperature tf_legacy_loss
    tie_encoder_decoder tie_word_embeddings tokenizer_class top_k top_p topk_group topk_method torchscript
    transformers_version typical_p use_bfloat16 use_cache v_head_dim vocab_size
    """.split()  # noqa: SIM905 - a list of a hundred strings reads worse
)
K26_HEAD_SIZES = {"kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return toy_checkpoint(tmp_path_factory.mktemp("export") / "toy")


def test_tensors_are_those_of_the_release(folder):
    found = open_checkpoint(folder)
    wanted = {spec.name: (spec.dtype, spec.shape) for specs in release_shards(TOY).values() for spec in specs}
    assert {name: (info.dtype, info.shape) for name, info in found.tensors.items()} == wanted
    assert sorted(found.shards) == sorted(release_shards(TOY))
    biases = [name for name in wanted if name.endswith("e_score_correction_bias")]
    assert biases and all(wanted[name][0] == "F32" for name in biases)


def test_halfbyte_knows_it_for_a_kimi_and_finds_no_fault(folder):
    model = describe(open_checkpoint(folder))
    assert model.family.name == describe(open_source(None, "kimi-k2.6")).family.name
    levels = {level for level, _ in inspect(open_source(str(folder), None)).verdicts}
    assert "bad" not in levels and "error" not in levels


def test_config_has_the_keys_of_the_release(folder):
    config = json.loads((folder / "config.json").read_text())
    assert config["architectures"] == ["KimiK25ForConditionalGeneration"]
    assert set(config["text_config"]) == K26_TEXT_KEYS
    assert config["text_config"]["quantization_config"]["format"] == "pack-quantized"
    assert "quantization_config" not in config
    assert {name: config["text_config"][name] for name in K26_HEAD_SIZES} == K26_HEAD_SIZES
    vision = config["vision_config"]
    assert vision["vt_hidden_size"] == vision["hidden_size"] == TOY.vision_width
    assert vision["vt_num_hidden_layers"] == vision["num_hidden_layers"] == TOY.vision_blocks
    assert not [key for key in (*config, *config["text_config"]) if key == "auto_map"]


def test_everyone_may_read_the_files(folder):
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()}
    assert set(modes.values()) == {0o644}, modes


def test_what_is_read_back_is_what_was_written(folder):
    written, found = toy_model().state_dict(), restore.state(folder)
    assert found.keys() == written.keys()
    for name, weights in written.items():
        if ".mlp.experts." in name:
            expected = int4.stored(weights).float()
        else:
            expected = weights if name.endswith("bias") else weights.to(torch.bfloat16).float()
        assert torch.equal(found[name], expected), name


def test_exporting_again_gives_the_same_bytes_and_leaves_nothing_old(folder, tmp_path):
    again = tmp_path / "again"
    again.mkdir()
    (again / "model-00099-of-000099.safetensors").write_bytes(b"old")
    toy_checkpoint(again)
    assert {path.name: path.read_bytes() for path in again.iterdir()} == {
        path.name: path.read_bytes() for path in folder.iterdir()
    }


def test_a_tensor_of_another_shape_is_refused(tmp_path):
    state = toy_model().state_dict()
    state["norm.weight"] = state["norm.weight"][:-1]
    with pytest.raises(AssertionError, match=r"norm\.weight has \(63,\), the release \(64,\)"):
        export.write_weights(state, tmp_path, TOY)


def test_kimi_mini_stays_below_24_megabytes():
    weights = sum(spec.nbytes for specs in release_shards(MINI).values() for spec in specs)
    assert weights < 23_200_000  # the rest is for headers, the index, the tokenizer and the card
