//! The sandbox's own process: a static program of about 250 bytes, assembled here.
//!
//! Each pod runs one, so its size is paid per pod: one page of memory, no interpreter, no libc. It holds the pod's namespaces
//! open, collects orphans when it is process 1 of a shared process namespace, and ends on SIGTERM or SIGINT.
//!
//! The signals are blocked, not handled: a blocked signal stays pending even for process 1, which the kernel otherwise shields
//! from signals it has no handler for (`sig_ignored` in kernel/signal.c), so that waiting for them is all there is to do.

use crate::image::{ImageFile, ImageTar};

/// Reference under which the sandbox image is imported unless configured otherwise. The number changes with the program.
pub const IMAGE: &str = "orch.local/pause:1";

/// The image of the sandbox's process as an archive to import: one file, `/pause`, under the reference `name`.
#[must_use]
pub fn image(name: &str) -> ImageTar {
    ImageTar::single_layer(
        name,
        &[ImageFile::Regular { path: "pause", mode: 0o755, data: program() }],
        &["/pause"],
    )
}

/// Where the program is loaded: the usual address of a static x86-64 program.
const BASE: u32 = 0x40_0000;
const ELF_HEADER_LEN: u32 = 64;
const PROGRAM_HEADER_LEN: u32 = 56;
const CODE: u32 = BASE + ELF_HEADER_LEN + 2 * PROGRAM_HEADER_LEN;

/// System call numbers of x86-64 (arch/x86/entry/syscalls/syscall_64.tbl).
const RT_SIGPROCMASK: u32 = 14;
const EXIT: u32 = 60;
const WAIT4: u32 = 61;
const RT_SIGTIMEDWAIT: u32 = 128;

/// The ELF file: header, one loaded segment of code and data, a stack that is not executable.
#[must_use]
pub fn program() -> Vec<u8> {
    // The code refers to the signal set behind it, whose address follows from the code's length.
    let length = u32::try_from(code(0).len()).unwrap_or(0);
    let code = code(CODE + length);
    let mut elf = Vec::with_capacity(256);
    let total = u64::from(CODE - BASE) + code.len() as u64 + 8;
    elf_header(&mut elf);
    program_header(
        &mut elf,
        1, /* PT_LOAD */
        5, /* R X */
        u64::from(BASE),
        total,
        0x1000,
    );
    program_header(&mut elf, 0x6474_e551 /* PT_GNU_STACK */, 6 /* R W */, 0, 0, 16);
    elf.extend(code);
    elf.extend(signal_set(&[2 /* SIGINT */, 15 /* SIGTERM */, 17 /* SIGCHLD */]).to_le_bytes());
    elf
}

/// A kernel signal set: bit `n - 1` for signal `n`.
fn signal_set(signals: &[u32]) -> u64 {
    signals.iter().fold(0, |set, signal| set | 1 << (signal - 1))
}

/// The program; `set` is the address of the signal set.
///
/// ```text
///         rt_sigprocmask(SIG_BLOCK, set, NULL, 8)
/// reap:   while wait4(-1, NULL, WNOHANG, NULL) > 0 {}
/// wait:   signal = rt_sigtimedwait(set, NULL, NULL, 8)
///         if signal == SIGCHLD goto reap
///         if signal < 0 goto wait          // interrupted by a stop or a debugger
///         exit(0)
/// ```
fn code(set: u32) -> Vec<u8> {
    let mut asm = Assembler::default();
    asm.syscall(RT_SIGPROCMASK, [0 /* SIG_BLOCK */, set, 0, 8]);
    let reap = asm.here();
    asm.syscall(WAIT4, [u32::MAX /* any child */, 0, 1 /* WNOHANG */, 0]);
    asm.bytes(&[0x85, 0xc0]); // test eax, eax
    asm.jump_back(0x7f /* jg */, reap);
    let wait = asm.here();
    asm.syscall(RT_SIGTIMEDWAIT, [set, 0, 0, 8]);
    asm.bytes(&[0x83, 0xf8, 17]); // cmp eax, SIGCHLD
    asm.jump_back(0x74 /* je */, reap);
    asm.bytes(&[0x85, 0xc0]); // test eax, eax
    asm.jump_back(0x78 /* js */, wait);
    asm.syscall(EXIT, [0, 0, 0, 0]);
    asm.code
}

/// Just enough of an assembler: system calls with constant arguments and short jumps back.
#[derive(Default)]
struct Assembler {
    code: Vec<u8>,
}

impl Assembler {
    fn here(&self) -> usize {
        self.code.len()
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.code.extend(bytes);
    }

    /// `mov` of the number and four arguments, each 32 bits wide and so clearing the upper half, then `syscall`.
    fn syscall(&mut self, number: u32, args: [u32; 4]) {
        self.bytes(&[0xb8]); // mov eax, imm32
        self.bytes(&number.to_le_bytes());
        let registers: [&[u8]; 4] = [&[0xbf], &[0xbe], &[0xba], &[0x41, 0xba]]; // edi, esi, edx, r10d
        for (register, arg) in registers.iter().zip(args) {
            self.bytes(register);
            self.bytes(&arg.to_le_bytes());
        }
        self.bytes(&[0x0f, 0x05]);
    }

    /// A conditional jump of two bytes to `target`, at most 128 bytes back.
    fn jump_back(&mut self, opcode: u8, target: usize) {
        let distance = self.code.len() + 2 - target;
        let displacement = i8::try_from(-(distance as isize)).unwrap_or(0);
        self.bytes(&[opcode, displacement.to_le_bytes()[0]]);
    }
}

fn elf_header(out: &mut Vec<u8>) {
    out.extend(b"\x7fELF");
    out.extend([
        2, /* 64 bit */
        1, /* little endian */
        1, /* version */
        0, 0, 0, 0, 0, 0, 0, 0, 0,
    ]);
    out.extend(2_u16.to_le_bytes()); // ET_EXEC
    out.extend(62_u16.to_le_bytes()); // EM_X86_64
    out.extend(1_u32.to_le_bytes()); // EV_CURRENT
    out.extend(u64::from(CODE).to_le_bytes()); // entry
    out.extend(u64::from(ELF_HEADER_LEN).to_le_bytes()); // program headers
    out.extend(0_u64.to_le_bytes()); // no section headers
    out.extend(0_u32.to_le_bytes()); // flags
    for half in [ELF_HEADER_LEN, PROGRAM_HEADER_LEN, 2, 0, 0, 0] {
        out.extend((half as u16).to_le_bytes());
    }
}

/// One program header of `size` bytes from the start of the file, mapped at `address`.
fn program_header(out: &mut Vec<u8>, kind: u32, flags: u32, address: u64, size: u64, align: u64) {
    out.extend(kind.to_le_bytes());
    out.extend(flags.to_le_bytes());
    for word in [0 /* offset */, address, address, size, size, align] {
        out.extend(word.to_le_bytes());
    }
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::io::{ErrorKind, Read as _};
    use std::os::unix::fs::PermissionsExt as _;
    use std::os::unix::process::ExitStatusExt as _;
    use std::path::{Path, PathBuf};
    use std::process::{Child, Command, Stdio};
    use std::time::{Duration, Instant};

    use super::*;

    fn install(dir: &Path) -> PathBuf {
        let path = dir.join("pause");
        std::fs::write(&path, program()).unwrap();
        std::fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
        path
    }

    /// Another test's fork may hold our file open for writing until its exec; the kernel then refuses ours.
    fn spawn(command: &mut Command) -> Child {
        loop {
            match command.stdin(Stdio::null()).spawn() {
                Err(error) if error.kind() == ErrorKind::ExecutableFileBusy => {}
                child => return child.unwrap(),
            }
        }
    }

    /// The program waits for a signal: it has blocked them and is in `rt_sigtimedwait`, which shows them as not blocked meanwhile.
    fn wait_until_ready(pid: u32) {
        wait_for(|| {
            let syscall = std::fs::read_to_string(format!("/proc/{pid}/syscall"));
            syscall.is_ok_and(|line| line.starts_with(&format!("{RT_SIGTIMEDWAIT} ")))
        });
    }

    fn wait_for(condition: impl Fn() -> bool) {
        let deadline = Instant::now() + Duration::from_secs(20);
        while !condition() {
            assert!(Instant::now() < deadline, "the program does not get there");
            std::thread::yield_now();
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
            let mut child = spawn(&mut Command::new(install(dir.path())));
            wait_until_ready(child.id());
            signal(&child, name);
            assert_eq!(child.wait().unwrap().code(), Some(0), "{name}");
            std::fs::remove_file(dir.path().join("pause")).unwrap();
        }
    }

    #[test]
    fn other_signals_keep_their_meaning() {
        let dir = tempfile::tempdir().unwrap();
        let mut child = spawn(&mut Command::new(install(dir.path())));
        wait_until_ready(child.id());
        signal(&child, "-USR1");
        assert_eq!(child.wait().unwrap().signal(), Some(10));
    }

    /// A shell forks a child that outlives it by an instant and then becomes the program itself: the child is the
    /// program's to collect, and its entry in the process table must go.
    #[test]
    fn collects_children() {
        let dir = tempfile::tempdir().unwrap();
        let script = format!("sleep 0.2 & echo $!; exec {}", install(dir.path()).display());
        let mut child = spawn(Command::new("sh").args(["-c", &script]).stdout(Stdio::piped()));
        let mut line = Vec::new();
        let mut stdout = child.stdout.take().unwrap();
        let mut byte = [0];
        while stdout.read(&mut byte).unwrap() == 1 && byte[0] != b'\n' {
            line.push(byte[0]);
        }
        let orphan = String::from_utf8(line).unwrap();
        wait_until_ready(child.id());
        wait_for(|| !Path::new(&format!("/proc/{orphan}")).exists());
        signal(&child, "-TERM");
        assert_eq!(child.wait().unwrap().code(), Some(0));
    }

    #[test]
    fn is_tiny() {
        let size = program().len();
        assert!(size < 320, "{size} bytes");
    }
}
