//! The sandbox's program for x86-64.

use super::SIGCHLD;

/// System call numbers (arch/x86/entry/syscalls/syscall_64.tbl).
const RT_SIGPROCMASK: u32 = 14;
const EXIT: u32 = 60;
const WAIT4: u32 = 61;
const RT_SIGTIMEDWAIT: u32 = 128;

/// The program; `set` is the address of the signal set.
pub(super) fn code(set: u32) -> Vec<u8> {
    let mut asm = Assembler::default();
    asm.syscall(RT_SIGPROCMASK, [0 /* SIG_BLOCK */, set, 0, 8]);
    let reap = asm.here();
    asm.syscall(WAIT4, [u32::MAX /* any child */, 0, 1 /* WNOHANG */, 0]);
    asm.bytes(&[0x85, 0xc0]); // test eax, eax
    asm.jump_back(0x7f /* jg */, reap);
    let wait = asm.here();
    asm.syscall(RT_SIGTIMEDWAIT, [set, 0, 0, 8]);
    asm.bytes(&[0x83, 0xf8, SIGCHLD.to_le_bytes()[0]]); // cmp eax, SIGCHLD
    asm.jump_back(0x74 /* je */, reap);
    asm.bytes(&[0x85, 0xc0]); // test eax, eax
    asm.jump_back(0x78 /* js */, wait);
    asm.syscall(EXIT, [0, 0, 0, 0]);
    asm.code
}

/// A minimal assembler: system calls with constant arguments and short backward jumps.
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

    /// `mov` of the number and four arguments, each 32 bits wide, which clears the upper half, then `syscall`.
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

    /// A conditional two-byte jump to `target`, at most 128 bytes back.
    fn jump_back(&mut self, opcode: u8, target: usize) {
        let distance = self.code.len() + 2 - target;
        let displacement = i8::try_from(-(distance as isize)).unwrap_or(0);
        self.bytes(&[opcode, displacement.to_le_bytes()[0]]);
    }
}
