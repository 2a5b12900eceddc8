//! Writes the seeds of every target below the directory `FUZZ_CORPUS`: `TARGET/seed-N`. It is one of the fuzzing
//! programs, because only those have what the flags of coverage ask the linker for.
#![no_main]

use std::path::PathBuf;

libfuzzer_sys::fuzz_target!(init: end(write()), |_bytes: &[u8]| {});

/// Ends the program before anything is searched.
fn end(written: std::io::Result<()>) {
    let code = match written {
        Ok(()) => 0,
        Err(error) => {
            eprintln!("write seeds: {error}");
            1
        }
    };
    std::process::exit(code)
}

fn write() -> std::io::Result<()> {
    let top = std::env::var_os("FUZZ_CORPUS").map(PathBuf::from).unwrap_or_default();
    for target in orch_fuzz::TARGETS {
        let dir = top.join(target.name);
        std::fs::create_dir_all(&dir)?;
        for (number, seed) in (target.seeds)().iter().enumerate() {
            std::fs::write(dir.join(format!("seed-{number}")), seed)?;
        }
    }
    Ok(())
}
