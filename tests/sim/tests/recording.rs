//! Durability of the whole node: sessions, partitions, log and loop over a real file, recorded; images of power cuts opened by
//! the same loop, and every record that a client was told of fetched from them.
//!
//! The short form runs with the other tests. The campaign:
//! `POLLUX_NODE_RECORDING_SECONDS=60 POLLUX_NODE_RECORDING_IMAGES=1010 cargo test --profile ci -p pollux-sim --test recording -- --nocapture`

use std::time::{Duration, Instant};

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

#[test]
fn whatever_clients_were_told_is_there_after_a_power_cut_at_any_moment() {
    let seconds = number("POLLUX_NODE_RECORDING_SECONDS", 4);
    let images = number("POLLUX_NODE_RECORDING_IMAGES", 24) as usize;
    let seed = number("POLLUX_NODE_RECORDING_SEED", 1);
    let path = std::env::temp_dir().join(format!("pollux-node-recording-{}", std::process::id()));
    let recorded = pollux_sim::record(&path, seed, Duration::from_secs(seconds));
    println!(
        "{seconds} s, {} events, topics made and deleted {:?}, {} elections, {:?} {:?}",
        recorded.events(),
        recorded.topics,
        recorded.elections,
        recorded.happened,
        recorded.stats
    );
    assert!(recorded.stats.acknowledged > 20 && recorded.stats.served > 20, "it was a load");
    if seconds >= 60 {
        let stats = &recorded.stats;
        let all = [u64::from(recorded.topics.1), u64::from(recorded.elections), stats.deleted_records];
        assert!(all.iter().all(|count| *count > 0) && recorded.happened.clean_stops > 0, "something did not happen");
    }
    let began = Instant::now();
    let checked = recorded.check(images, seed);
    println!("{:?}: {checked:?}", began.elapsed());
    assert!(checked.images * 10 >= images * 9, "cuts before the first client are few");
    assert!(checked.with_records * 2 >= checked.images && checked.audited_batches > 0, "{checked:?}");
}
