//! Runs shell commands at the same time, and tells how long each took and a checksum of what they
//! said, as one line of JSON. A plain program that knows nothing of Pagekeeper.

use serde_json::{Map, Value, json};
use std::error::Error;
use std::io::Read;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

type Ended = Result<(Duration, u64), String>;

fn main() -> Result<(), Box<dyn Error>> {
    let named: Option<Vec<(String, String)>> = std::env::args()
        .skip(1)
        .map(|argument| argument.split_once('=').map(|(n, c)| (n.to_owned(), c.to_owned())))
        .collect();
    let commands = named.filter(|c| !c.is_empty()).ok_or("usage: together NAME=COMMAND…")?;
    let start = Instant::now();
    let ended: Vec<Ended> = std::thread::scope(|scope| {
        let started: Vec<_> =
            commands.iter().map(|(name, shell)| scope.spawn(|| run(name, shell))).collect();
        let joined = started.into_iter().map(|thread| thread.join());
        joined.map(|ended| ended.unwrap_or_else(|_| Err("a thread panicked".into()))).collect()
    });
    let elapsed_ns = start.elapsed().as_nanos() as u64;
    let (mut programs, mut checksums) = (Map::new(), Vec::new());
    for ((name, _), ended) in commands.iter().zip(ended) {
        let (elapsed, checksum) = ended?;
        programs.insert(name.clone(), json!(elapsed.as_nanos() as u64));
        checksums.push(format!("{checksum:016x}"));
    }
    let told = json!({
        "elapsed_ns": elapsed_ns, "checksum": checksums.join(" "),
        "programs_ns": Value::Object(programs),
    });
    println!("{told}");
    Ok(())
}

/// How long a command took, and the FNV-1a hash of its standard output.
fn run(name: &str, shell: &str) -> Ended {
    let start = Instant::now();
    let failed = |e: std::io::Error| format!("{name}: {e}");
    let mut command = Command::new("sh");
    command.args(["-c", shell]).stdin(Stdio::null()).stdout(Stdio::piped());
    let mut child = command.spawn().map_err(failed)?;
    let mut output = child.stdout.take().expect("piped");
    let (mut hash, mut buffer) = (0xcbf2_9ce4_8422_2325_u64, vec![0; 1 << 16]);
    loop {
        let read = output.read(&mut buffer).map_err(failed)?;
        if read == 0 {
            break;
        }
        for byte in &buffer[..read] {
            hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }
    let status = child.wait().map_err(failed)?;
    if status.success() { Ok((start.elapsed(), hash)) } else { Err(format!("{name}: {status}")) }
}
