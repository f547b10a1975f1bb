//! Mutated frames of every served API against whole sessions, beside a client that behaves. FRAMES_PER_API sets how many
//! (the full campaign is 10000), SESSIONS_SEED which.

use pollux_fuzz_targets::sessions::{Tally, campaign};
use session::route;

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name} is a number")))
}

#[test]
fn mutated_frames_of_every_api_harm_nobody() {
    let count = number("FRAMES_PER_API", 300) as usize;
    let seed = number("SESSIONS_SEED", 1);
    let mut all = Tally::default();
    for api in route::served() {
        let tally = campaign(api, count, seed);
        assert!(tally.frames >= count, "{api}");
        println!("{:28} {tally:?}", api.name());
        all.frames += tally.frames;
        all.answers += tally.answers;
        all.ended += tally.ended;
        all.commands += tally.commands;
        all.forwards += tally.forwards;
    }
    println!("{:28} {all:?}", "all");
    // A run in which every frame was refused at the door, or none was, shows nothing.
    assert!(all.answers * 20 > all.frames && all.ended * 50 > all.frames && all.commands * 50 > all.frames, "{all:?}");
}
