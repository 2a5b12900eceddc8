//! The sandbox's process: a static program of about 300 bytes, assembled here.
//!
//! Each pod runs one, so its size counts per pod: one page of memory, no interpreter, no libc. It keeps the pod's namespaces
//! open, reaps orphans as process 1 of a shared PID namespace, and exits on SIGTERM or SIGINT.
//!
//! The signals are blocked instead of handled. A blocked signal stays pending even for process 1, to which the kernel otherwise
//! does not deliver signals without a handler (`sig_ignored` in kernel/signal.c), so waiting for them is enough.
//!
//! ```text
//!         rt_sigprocmask(SIG_BLOCK, set, NULL, 8)
//! reap:   while wait4(-1, NULL, WNOHANG, NULL) > 0 {}
//! wait:   signal = rt_sigtimedwait(set, NULL, NULL, 8)
//!         if signal == SIGCHLD goto reap
//!         if signal < 0 goto wait          // interrupted by a stop or a debugger
//!         exit(0)
//! ```

mod aarch64;
mod x86_64;

use crate::image::{ImageFile, ImageTar};

/// Default reference of the sandbox image. Its number changes with the program.
pub const IMAGE: &str = "orch.local/pause:1";

/// There is no program for this architecture.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "no sandbox program is built in for {0}, only for x86_64 and aarch64: import an image with one into the runtime and name it by \
     --pod-infra-container-image"
)]
pub struct UnsupportedMachine(String);

/// The sandbox image as an archive to import: one file, `/pause`, under the reference `name`.
///
/// # Errors
/// There is no program for this host's architecture.
pub fn image(name: &str) -> Result<ImageTar, UnsupportedMachine> {
    let data = program(std::env::consts::ARCH)?;
    let file = ImageFile::Regular { path: "pause", mode: 0o755, data };
    Ok(ImageTar::single_layer(name, &[file], &["/pause"]))
}

/// Load address of the program, usual for static programs on both architectures.
const BASE: u32 = 0x40_0000;
const ELF_HEADER_LEN: u32 = 64;
const PROGRAM_HEADER_LEN: u32 = 56;
const CODE: u32 = BASE + ELF_HEADER_LEN + 2 * PROGRAM_HEADER_LEN;

/// Fields of the ELF header by architecture: `e_machine` (elf(5)), and the largest page size.
struct ElfMachine {
    number: u16,
    page: u64,
}

const X86_64: ElfMachine = ElfMachine { number: 62, page: 0x1000 };
const AARCH64: ElfMachine = ElfMachine { number: 183, page: 0x1_0000 };

/// The ELF file for an architecture in Rust's spelling: header, one loaded segment with code and data, non-executable stack.
///
/// # Errors
/// There is no program for the architecture.
pub fn program(arch: &str) -> Result<Vec<u8>, UnsupportedMachine> {
    let (machine, code) = match arch {
        "x86_64" => {
            // The code refers to the signal set after it, whose address depends on the length of the code.
            let length = u32::try_from(x86_64::code(0).len()).unwrap_or(0);
            (X86_64, x86_64::code(CODE + length))
        }
        "aarch64" => (AARCH64, aarch64::code()),
        other => return Err(UnsupportedMachine(other.to_owned())),
    };
    let mut elf = Vec::with_capacity(512);
    let total = u64::from(CODE - BASE) + code.len() as u64 + 8;
    elf_header(&mut elf, machine.number);
    program_header(
        &mut elf,
        1, /* PT_LOAD */
        5, /* R X */
        u64::from(BASE),
        total,
        machine.page,
    );
    program_header(&mut elf, 0x6474_e551 /* PT_GNU_STACK */, 6 /* R W */, 0, 0, 16);
    elf.extend(code);
    elf.extend(signal_set(&[2 /* SIGINT */, 15 /* SIGTERM */, SIGCHLD]).to_le_bytes());
    Ok(elf)
}

const SIGCHLD: u32 = 17;

/// A kernel signal set: bit `n - 1` for signal `n`.
fn signal_set(signals: &[u32]) -> u64 {
    signals.iter().fold(0, |set, signal| set | 1 << (signal - 1))
}

fn elf_header(out: &mut Vec<u8>, machine: u16) {
    out.extend(b"\x7fELF");
    out.extend([
        2, /* 64 bit */
        1, /* little endian */
        1, /* version */
        0, 0, 0, 0, 0, 0, 0, 0, 0,
    ]);
    out.extend(2_u16.to_le_bytes()); // ET_EXEC
    out.extend(machine.to_le_bytes());
    out.extend(1_u32.to_le_bytes()); // EV_CURRENT
    out.extend(u64::from(CODE).to_le_bytes()); // entry
    out.extend(u64::from(ELF_HEADER_LEN).to_le_bytes()); // program headers
    out.extend(0_u64.to_le_bytes()); // no section headers
    out.extend(0_u32.to_le_bytes()); // flags
    for half in [ELF_HEADER_LEN, PROGRAM_HEADER_LEN, 2, 0, 0, 0] {
        out.extend((half as u16).to_le_bytes());
    }
}

/// A program header of `size` bytes from the start of the file, mapped at `address`.
fn program_header(out: &mut Vec<u8>, kind: u32, flags: u32, address: u64, size: u64, align: u64) {
    out.extend(kind.to_le_bytes());
    out.extend(flags.to_le_bytes());
    for word in [0 /* offset */, address, address, size, size, align] {
        out.extend(word.to_le_bytes());
    }
}

#[cfg(test)]
mod tests {
    use std::io::{ErrorKind, Read as _};
    use std::os::unix::process::ExitStatusExt as _;
    use std::path::{Path, PathBuf};
    use std::process::{Child, Command, Stdio};
    use std::time::{Duration, Instant};

    use std::env::consts::ARCH;

    use super::*;

    /// Number of the system call that waits for signals on this machine.
    const RT_SIGTIMEDWAIT: u32 = if cfg!(target_arch = "aarch64") { 137 } else { 128 };

    /// Writes the program by another process: of a file that is open for writing here a fork in another test would have a copy until its exec, and the kernel
    /// executes no file that is open for writing.
    fn install(dir: &Path, arch: &str) -> PathBuf {
        let (bytes, path) = (dir.join("bytes"), dir.join("pause"));
        std::fs::write(&bytes, program(arch).unwrap()).unwrap();
        let mut command = Command::new("install");
        assert!(command.args(["-m", "755"]).args([&bytes, &path]).status().unwrap().success());
        path
    }

    fn spawn(command: &mut Command) -> Child {
        command.stdin(Stdio::null()).spawn().unwrap()
    }

    /// Waits until the program has blocked its signals and is in `rt_sigtimedwait`, where they do not show as blocked.
    fn wait_until_ready(pid: u32) {
        wait_for(|| {
            let syscall = std::fs::read_to_string(format!("/proc/{pid}/syscall"));
            syscall.is_ok_and(|line| line.starts_with(&format!("{RT_SIGTIMEDWAIT} ")))
        });
    }

    fn wait_for(condition: impl Fn() -> bool) {
        let deadline = Instant::now() + Duration::from_secs(120);
        while !condition() {
            assert!(Instant::now() < deadline, "the program does not get there");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    fn signal(child: &Child, signal: &str) {
        let sent = Command::new("kill").args([signal, &child.id().to_string()]).status().unwrap();
        assert!(sent.success());
    }

    #[test]
    fn ends_well_on_term_and_int() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["-TERM", "-INT"] {
            let mut child = spawn(&mut Command::new(install(dir.path(), ARCH)));
            wait_until_ready(child.id());
            signal(&child, name);
            assert_eq!(child.wait().unwrap().code(), Some(0), "{name}");
            std::fs::remove_file(dir.path().join("pause")).unwrap();
        }
    }

    #[test]
    fn other_signals_keep_their_meaning() {
        let dir = tempfile::tempdir().unwrap();
        let mut child = spawn(&mut Command::new(install(dir.path(), ARCH)));
        wait_until_ready(child.id());
        signal(&child, "-USR1");
        assert_eq!(child.wait().unwrap().signal(), Some(10));
    }

    /// A shell forks a child and then becomes the program: the child, which ends later, is the program's to collect.
    #[test]
    fn collects_children() {
        let dir = tempfile::tempdir().unwrap();
        let script = format!("sleep 300 & echo $!; exec {}", install(dir.path(), ARCH).display());
        let mut child = spawn(Command::new("sh").args(["-c", &script]).stdout(Stdio::piped()));
        let mut line = Vec::new();
        let mut stdout = child.stdout.take().unwrap();
        let mut byte = [0];
        while stdout.read(&mut byte).unwrap() == 1 && byte[0] != b'\n' {
            line.push(byte[0]);
        }
        let orphan = String::from_utf8(line).unwrap();
        wait_until_ready(child.id());
        assert!(Command::new("kill").args(["-KILL", &orphan]).status().unwrap().success());
        wait_for(|| !Path::new(&format!("/proc/{orphan}")).exists());
        signal(&child, "-TERM");
        assert_eq!(child.wait().unwrap().code(), Some(0));
    }

    #[test]
    fn is_tiny() {
        for arch in ["x86_64", "aarch64"] {
            let size = program(arch).unwrap().len();
            assert!(size < 320, "{arch}: {size} bytes");
        }
    }

    #[test]
    fn a_machine_without_a_program_is_refused_by_name() {
        let refused = program("riscv64").unwrap_err().to_string();
        assert!(refused.contains("riscv64") && refused.contains("--pod-infra-container-image"));
        for (arch, machine) in [("x86_64", 62), ("aarch64", 183)] {
            assert_eq!(program(arch).unwrap()[18..20], [machine, 0], "{arch}");
        }
    }

    /// Runs the other architecture's program if its emulator is installed; the emulator prints the system calls.
    #[test]
    fn runs_on_aarch64() {
        let emulator =
            std::env::var_os("QEMU_AARCH64").unwrap_or_else(|| "qemu-aarch64-static".into());
        let dir = tempfile::tempdir().unwrap();
        let path = install(dir.path(), "aarch64");
        for name in ["-TERM", "-INT"] {
            let trace = dir.path().join("trace");
            let mut command = Command::new(&emulator);
            command.args(["-strace", "-D"]).args([&trace, &path]);
            let mut child = match command.stdin(Stdio::null()).spawn() {
                Err(error) if error.kind() == ErrorKind::NotFound => {
                    eprintln!("SKIPPED runs_on_aarch64: needs qemu-aarch64-static");
                    return;
                }
                child => child.unwrap(),
            };
            let traced = || std::fs::read_to_string(&trace).unwrap_or_default();
            wait_for(|| traced().contains("rt_sigtimedwait"));
            signal(&child, name);
            assert_eq!(child.wait().unwrap().code(), Some(0), "{name}: {}", traced());
            std::fs::remove_file(&trace).unwrap();
        }
    }
}
