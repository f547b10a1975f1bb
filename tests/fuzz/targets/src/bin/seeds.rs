//! Writes every target's valid inputs as corpora for cargo-fuzz: `seeds DIRECTORY` makes a folder for each target.

use pollux_fuzz_targets::TARGETS;
use std::path::PathBuf;

fn main() -> std::io::Result<()> {
    let Some(directory) = std::env::args_os().nth(1).map(PathBuf::from) else {
        eprintln!("usage: seeds DIRECTORY");
        std::process::exit(2);
    };
    for target in TARGETS {
        let folder = directory.join(target.name);
        std::fs::create_dir_all(&folder)?;
        let seeds = (target.seeds)();
        for (number, seed) in seeds.iter().enumerate() {
            std::fs::write(folder.join(format!("seed-{number:04}")), seed)?;
        }
        println!("{} {}", target.name, seeds.len());
    }
    Ok(())
}
