//! Every target on a fixed count of mutated inputs, on its valid ones, and on those that once failed.

use base::Random;
use pollux_fuzz_targets::mutate::{mutated, nudged};
use pollux_fuzz_targets::{TARGETS, Target, depth};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

/// Runs one input, and says which one where it fails.
fn run(target: &Target, input: &[u8], what: &str) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| (target.run)(input))) {
        eprintln!("{}: {what} of {} bytes: {}", target.name, input.len(), hex(input));
        std::panic::resume_unwind(panic);
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Runs one input; whether it was more than refused.
fn reached(target: &Target, input: &[u8], what: &str) -> bool {
    let before = depth::count();
    run(target, input, what);
    depth::count() > before
}

/// FUZZ_RUNS multiplies the counts.
fn factor() -> u32 {
    std::env::var("FUZZ_RUNS").ok().map_or(1, |text| text.parse().expect("FUZZ_RUNS is a number"))
}

fn fuzz(target: &Target) {
    let seeds = (target.seeds)();
    assert!(!seeds.is_empty(), "{} has seeds", target.name);
    let good = (seeds.iter().enumerate()).filter(|(number, seed)| reached(target, seed, &format!("seed {number}")));
    let good = good.count();
    let mut read = 0;
    let mut random = Random::from_seed(u64::from(factor()));
    for number in 0..target.short_runs * factor() {
        let seed = &seeds[random.below(seeds.len() as u64) as usize];
        let other = &seeds[random.below(seeds.len() as u64) as usize];
        let input = if number % 2 == 0 { mutated(seed, other, &mut random) } else { nudged(seed, &mut random) };
        read += u32::from(reached(target, &input, &format!("mutation {number}")));
    }
    for number in 0..target.short_runs.min(300) {
        let mut bytes = vec![0; random.below(300) as usize];
        random.fill(&mut bytes);
        run(target, &bytes, &format!("random bytes {number}"));
    }
    // Refused at the door, all of them or nearly, would show nothing.
    let runs = target.short_runs * factor();
    assert!(good * 3 >= seeds.len(), "{}: {good} of {} seeds are read", target.name, seeds.len());
    assert!(read * 50 >= runs, "{}: {read} of {runs} mutations are read", target.name);
    println!("{:24} {good:5} of {:5} seeds and {read:6} of {runs:6} mutations are read", target.name, seeds.len());
}

/// Two threads share the targets.
#[test]
fn every_target_survives_mutations() {
    let next = std::sync::atomic::AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                loop {
                    let at = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                    let Some(target) = TARGETS.get(at) else { break };
                    let start = std::time::Instant::now();
                    fuzz(target);
                    println!("{:24} {:6.2?}", target.name, start.elapsed());
                }
            });
        }
    });
}

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

/// An input that failed once stands in `regressions/TARGET/`.
#[test]
fn what_failed_once_fails_no_more() {
    let Ok(targets) = std::fs::read_dir(folder("regressions")) else { return };
    for entry in targets {
        let path = entry.expect("a readable folder").path();
        let name = path.file_name().and_then(|name| name.to_str()).expect("a target's name");
        let target = pollux_fuzz_targets::find(name).unwrap_or_else(|| panic!("{name} is a target"));
        for input in std::fs::read_dir(&path).expect("a folder of inputs") {
            let input = input.expect("a readable folder").path();
            run(target, &std::fs::read(&input).expect("a readable file"), &input.display().to_string());
        }
    }
}

/// The campaign's programs are as many as the targets, and each calls its own.
#[test]
fn every_target_has_its_program() {
    let manifest = std::fs::read_to_string(folder("../fuzz/Cargo.toml")).expect("the programs' manifest");
    for target in TARGETS {
        let path = folder("../fuzz/fuzz_targets").join(format!("{}.rs", target.name));
        let program = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        assert!(program.contains(&format!("::{}(data)", target.name)), "{program}");
        assert!(manifest.contains(&format!("name = \"{}\"", target.name)), "{} is in the manifest", target.name);
    }
    let programs = std::fs::read_dir(folder("../fuzz/fuzz_targets")).expect("the programs").count();
    assert_eq!(programs, TARGETS.len());
}
