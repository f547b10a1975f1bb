//! Every decoder that meets bytes from outside, as a function of those bytes that asserts what must hold of any: it
//! never panics, never takes memory out of proportion to its input, what it accepts survives being written and read
//! again, and a borrowed view says what the owned form says.
//!
//! Called by the cargo-fuzz programs in `../fuzz` (a file each) and by `tests/short.rs`, which runs every target on a
//! fixed count of seeded mutations; `src/bin/seeds.rs` writes the valid inputs out as corpora. `sessions` goes further:
//! whole connections over the simulated network, beside a client that behaves (`tests/sessions.rs`). It knows only what
//! the rooms make public. Invariant: a target's outcome depends on its input alone, so that an input that failed can be
//! kept; those stand in `regressions/` by target and are run by `tests/short.rs`.
#![forbid(unsafe_code)]

pub mod batches;
pub mod coordinate;
pub mod depth;
pub mod golden;
pub mod media;
pub mod memory;
pub mod messages;
pub mod metadata;
pub mod mutate;
pub mod options;
pub mod peers;
pub mod replicas;
pub mod sessions;
pub mod socket;

/// A decoder under test.
#[derive(Clone, Copy)]
pub struct Target {
    /// The name of the fuzz program, of its corpus and of the function.
    pub name: &'static str,
    pub run: fn(&[u8]),
    /// Valid inputs to start from.
    pub seeds: fn() -> Vec<Vec<u8>>,
    /// Mutated inputs in the short run; a target that does more with each has fewer.
    pub short_runs: u32,
}

macro_rules! targets {
    ($($module:ident::$run:ident, $seeds:ident, $short_runs:literal;)*) => {
        /// All targets.
        pub const TARGETS: &[Target] = &[
            $(Target { name: stringify!($run), run: $module::$run, seeds: $module::$seeds, short_runs: $short_runs }),*
        ];
    };
}

targets! {
    messages::request, request_seeds, 15000;
    messages::response, response_seeds, 15000;
    messages::message, message_seeds, 30000;
    messages::framing, framing_seeds, 10000;
    messages::metadata_record, metadata_record_seeds, 15000;
    messages::coordinator_record, coordinator_record_seeds, 15000;
    messages::control_record, control_record_seeds, 6000;
    batches::record_batch, record_batch_seeds, 8000;
    batches::inner_records, inner_records_seeds, 4000;
    batches::compressed, compressed_seeds, 4000;
    media::superblock, superblock_seeds, 3000;
    media::journal_commit, journal_commit_seeds, 10000;
    media::journal_record, journal_record_seeds, 30000;
    media::root, root_seeds, 5000;
    media::partition_blob, partition_blob_seeds, 30000;
    media::directory, directory_seeds, 20000;
    media::index_blocks, index_blocks_seeds, 2000;
    media::region_map, region_map_seeds, 10000;
    peers::link_up, link_up_seeds, 20000;
    peers::link_down, link_down_seeds, 15000;
    peers::saved_view, saved_view_seeds, 10000;
    replicas::quorum_directory, quorum_directory_seeds, 1500;
    replicas::quorum_message, quorum_message_seeds, 15000;
    replicas::quorum_conversation, quorum_conversation_seeds, 1000;
    metadata::metadata_log, metadata_log_seeds, 4000;
    metadata::controller_request, controller_request_seeds, 2000;
    coordinate::offsets_partition, offsets_partition_seeds, 3000;
    coordinate::group_request, group_request_seeds, 3000;
    options::setting_value, setting_value_seeds, 30000;
    options::setting_changes, setting_changes_seeds, 2000;
    options::config_file, config_file_seeds, 1500;
    socket::connection, connection_seeds, 300;
}

pub fn find(name: &str) -> Option<&'static Target> {
    TARGETS.iter().find(|target| target.name == name)
}
