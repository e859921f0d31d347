"""Which test shows which row of the seeds' checklist (S) and of the peer's surface (V); what is still open says so."""

from __future__ import annotations

REPORTS = "tests/process/test_reports.py::"
CHECKPOINTS = "tests/process/test_checkpoints.py::"
MODES = "tests/process/test_upload_modes.py::"
DICTS = "tests/unit/storage/test_dicts.py::"
STORAGE = "tests/unit/storage/test_storage.py::"
RUN = "tests/process/test_run.py::"
BAD = "tests/process/test_bad_reports.py::"
AIR = "tests/process/test_air.py::"
OBJECTS = "tests/process/test_object_store.py::"
VALIDATION = "tests/process/test_validation.py::"
ELASTIC = "tests/process/test_elastic.py::"
PREEMPTION = "tests/process/test_preemption.py::"
DATASETS = "tests/process/test_datasets.py::"
DATASET = "tests/unit/data/test_dataset.py::"
SOURCES = "tests/unit/data/test_sources.py::"
PROGRAMS = "tests/seeds/test_programs.py::"
BAD_LUCK = "tests/process/test_bad_luck.py::"

SHOWN = {
    # resuming
    "S92": REPORTS + "test_resume_from_checkpoint_is_the_first_one",
    "S113": REPORTS + "test_get_checkpoint_gives_the_newest",
    "V12": REPORTS + "test_get_checkpoint_gives_the_newest",
    "V36": CHECKPOINTS + "test_a_dict_is_a_checkpoint_and_where_a_run_goes_on",
    "V64": CHECKPOINTS + "test_restore_goes_on_with_what_was_asked_for",
    "V73": CHECKPOINTS + "test_a_dict_is_a_checkpoint_and_where_a_run_goes_on",
    # results
    "S99": REPORTS + "test_metrics_are_kept_with_or_without_a_checkpoint",
    "S101": REPORTS + "test_metrics_are_kept_with_or_without_a_checkpoint",
    "S102": REPORTS + "test_retention_keeps_the_best_and_the_newest",
    "S103": REPORTS + "test_retention_keeps_the_best_and_the_newest",
    "S168": RUN + "test_every_worker_runs_the_function_and_rank_zero_answers",
    "S181": RUN + "test_nested_metrics_are_shown_and_tabulated_by_their_path",
    "V74": REPORTS + "test_metrics_are_kept_with_or_without_a_checkpoint",
    "V75": REPORTS + "test_retention_keeps_the_best_and_the_newest",
    "V76": REPORTS + "test_metrics_are_kept_with_or_without_a_checkpoint",
    "V77": RUN + "test_what_another_attempt_would_only_repeat_is_not_tried_again",
    "V79": CHECKPOINTS + "test_a_dict_is_a_checkpoint_and_where_a_run_goes_on",
    "V80": REPORTS + "test_retention_keeps_the_best_and_the_newest",
    "S104": AIR + "test_reports_hold_what_was_filled_in",
    "S105": AIR + "test_reports_hold_what_was_filled_in",
    "S106": AIR + "test_runs_are_named_and_nested_as_trials",  # and what was filled in: S105
    "S107": AIR + "test_runs_are_named_and_nested_as_trials",  # checkpoints lie one folder deeper
    # the Checkpoint class
    "S120": AIR + "test_dict_checkpoints_have_extra_keys_and_are_counted_as_they_were",
    "S121": AIR + "test_counting_goes_on_from_the_loaded_id_without_adding_one",
    "S118": DICTS + "test_tensors_and_arrays_come_back_without_pickle",
    "S119": CHECKPOINTS + "test_a_dict_is_a_checkpoint_and_where_a_run_goes_on",
    "S122": DICTS + "test_its_representation_tells_what_it_is",
    "S125": CHECKPOINTS + "test_a_torch_checkpoint_gives_its_model_back",
    "S162": STORAGE + "test_a_checkpoint_is_a_path_and_no_more",
    "V82": STORAGE + "test_a_checkpoint_is_a_path_and_no_more",
    "V83": REPORTS + "test_to_directory_copies_the_files_alone",
    "V84": CHECKPOINTS + "test_a_checkpoint_that_is_being_read_is_not_taken_away",
    "V85": DICTS + "test_metadata_lies_beside_the_files",
    "V86": DICTS + "test_a_folder_that_is_no_dict_says_so",
    "V87": CHECKPOINTS + "test_a_torch_checkpoint_gives_its_model_back",
    # retention
    "S127": REPORTS + "test_retention_keeps_the_best_and_the_newest",
    "S128": CHECKPOINTS + "test_no_checkpoint_on_disk_and_the_newest_in_memory",
    "S129": REPORTS + "test_retention_keeps_the_best_and_the_newest",
    "S130": REPORTS + "test_retention_keeps_the_best_and_the_newest",
    "S131": CHECKPOINTS + "test_a_checkpoint_is_ranked_by_its_own_dict_first",
    "V47": STORAGE + "test_metrics_are_found_by_nested_keys",
    # ways into storage
    "V10": OBJECTS + "test_a_bad_day_of_the_server_is_survived",
    "V37": OBJECTS + "test_a_run_saves_ends_and_goes_on",
    "V38": OBJECTS + "test_any_filesystem_will_do",
    "S124": REPORTS + "test_a_reported_folder_is_copied_and_never_touched",
    "V1": REPORTS + "test_the_files_of_all_ranks_become_one_checkpoint",
    "V2": MODES + "test_a_checkpoint_may_have_a_name",
    "V3": MODES + "test_files_that_are_there_already_need_no_upload",
    "V4": MODES + "test_what_holds_the_run_itself_is_not_taken",
    "V5": MODES + "test_the_users_own_way_into_storage",
    "V7": BAD + "test_tensors_in_metrics_are_refused_with_key_and_remedy",
    "V8": MODES + "test_mixed_modes_commit_in_order",
    "V9": MODES + "test_an_error_on_the_way_fails_the_run",
    "V11": MODES + "test_async_across_filesystems_is_copied_by_another_process",
    "V88": MODES + "test_async_moves_the_files_and_leaves_the_folder",
    # validation beside training
    "V6": VALIDATION + "test_a_validation_that_cannot_be_is_refused_at_once",
    "V15": VALIDATION + "test_reported_checkpoints_are_given_when_they_are_committed_or_validated_or_when_time_is_over",
    "V50": VALIDATION + "test_training_goes_on_while_checkpoints_are_validated_several_at_once",
    "V51": VALIDATION + "test_a_report_overrides_the_trainers_keywords_one_by_one",
    "V52": VALIDATION + "test_a_validation_that_goes_wrong_never_fails_the_run",
    "V89": VALIDATION + "test_reported_checkpoints_are_given_when_they_are_committed_or_validated_or_when_time_is_over",
    "V90": VALIDATION + "test_a_killed_driver_leaves_no_process_and_the_pending_validation_is_taken_up_again",
    # failures
    "S52": "tests/process/test_endings.py::test_a_failure_within_budget_starts_anew_and_says_so",
    "S53": "tests/process/test_bad_luck.py::test_two_deaths_at_once_are_one_failure",
    "S54": ELASTIC + "test_three_then_one_then_three_workers_see_every_sample_once",
    "S155": "tests/process/test_endings.py::test_failures_beyond_the_budget_end_the_run",
    "S200": ELASTIC + "test_a_worker_that_cannot_be_replaced_is_done_without",
    "V26": ELASTIC + "test_where_there_is_no_room_it_waits_and_begins_when_there_is",
    "V33": ELASTIC + "test_what_could_not_be_forked_is_done_without_for_a_while",
    "V43": "tests/unit/control/test_failures.py::test_the_policy_counts",
    "V44": BAD_LUCK + "test_workers_that_never_come_up_end_the_run_when_the_budget_for_starts_is_spent",
    "V45": "tests/unit/control/test_failures.py::test_the_three_budgets_know_nothing_of_each_other",
    "V16": PREEMPTION + "test_a_loop_that_saves_its_own_state_is_told_in_time",
    "V91": PREEMPTION + "test_errors_survive_pickle_with_all_that_they_know",
    "V93": PREEMPTION + "test_a_loop_that_saves_its_own_state_is_told_in_time",
    "V94": PREEMPTION + "test_preemptions_have_a_budget_of_their_own",
    "V92": "tests/process/test_endings.py::test_equal_errors_of_several_ranks_are_one",
    # data
    "S55": DATASETS + "test_every_row_comes_once_per_epoch_and_all_ranks_make_as_many_steps",
    "S56": DATASETS + "test_shards_are_found_by_name",
    "S57": DATASET + "test_to_torch_gives_features_and_label",
    "S58": DATASET + "test_older_words_change_nothing",
    "S72": DATASETS + "test_shards_are_found_by_name",
    "S80": DATASET + "test_older_words_change_nothing",
    "S91": DATASETS + "test_datasets_that_are_not_split_are_whole_on_every_worker",
    "S114": PROGRAMS + "test_seed_004_splits_a_csv_file_and_deals_it_out",
    "S153": PROGRAMS + "test_seed_004_splits_a_csv_file_and_deals_it_out",
    "S154": PROGRAMS + "test_seed_004_splits_a_csv_file_and_deals_it_out",
    "S171": PROGRAMS + "test_seed_002_step_3_reads_maps_and_deals_out_parquet_files",
    "S184": DATASET + "test_no_function_is_called_before_rows_are_asked_for",
    "S185": PROGRAMS + "test_seed_002_step_3_reads_maps_and_deals_out_parquet_files",
    "S186": DATASET + "test_map_makes_a_row_of_each_row_in_order",
    "S187": PROGRAMS + "test_seed_002_step_3_reads_maps_and_deals_out_parquet_files",
    "S188": DATASETS + "test_shards_are_found_by_name",
    "S189": DATASET + "test_torch_batches_are_made_once_and_iterated_in_every_epoch",
    "S190": DATASET + "test_a_function_may_run_in_another_process",
    "V14": DATASETS + "test_shards_are_found_by_name",
    "V53": DATASETS + "test_datasets_that_are_not_split_are_whole_on_every_worker",
    "V126": DATASET + "test_batches_come_in_every_form",
    "V127": DATASET + "test_dtypes_are_one_for_all_or_one_by_column",
    "V129": DATASET + "test_to_torch_may_leave_the_label_flat_and_take_dtypes",
    "V130": DATASET + "test_a_part_knows_the_whole",
    "V131": DATASET + "test_a_materialized_dataset_does_not_call_its_functions_again",
    "V132": DATASET + "test_parts_are_disjoint_whole_and_make_equal_steps",
    "V133": DATASET + "test_breaking_out_of_a_loop_leaves_no_thread",
    "V134": "tests/unit/data/test_reading.py::test_options_travel_with_a_dataset",
    "V135": SOURCES + "test_a_dataset_of_hugging_face_is_one_of_ours",  # and the others in that file
    "V128": "tests/unit/data/test_tensorflow.py::test_batches_are_tensors_of_tensorflow",
}

OPEN: dict[str, str] = {}
