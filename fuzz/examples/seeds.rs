//! `seeds FOLDER TARGET`: writes a target's inputs to begin with into a folder.

use pagekeeper_fuzz::TARGETS;
use std::path::Path;

fn main() -> std::io::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let target = TARGETS.iter().find(|target| arguments.get(1).is_some_and(|it| it == target.name));
    let ([folder, _], Some(target)) = (&arguments[..], target) else {
        let names: Vec<&str> = TARGETS.iter().map(|target| target.name).collect();
        eprintln!("usage: seeds FOLDER TARGET, which is one of {}", names.join(", "));
        std::process::exit(2);
    };
    std::fs::create_dir_all(folder)?;
    for (number, seed) in (target.seeds)().into_iter().enumerate() {
        std::fs::write(Path::new(folder).join(format!("seed-{number:03}")), seed)?;
    }
    Ok(())
}
