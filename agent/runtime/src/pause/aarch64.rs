//! The sandbox's program for aarch64: 32-bit words, followed by the signal set.

use super::SIGCHLD;

/// System call numbers (include/uapi/asm-generic/unistd.h).
const EXIT: u32 = 93;
const RT_SIGPROCMASK: u32 = 135;
const RT_SIGTIMEDWAIT: u32 = 137;
const WAIT4: u32 = 260;

/// Branch conditions.
const EQUAL: u32 = 0x0;
const NEGATIVE: u32 = 0x4;
const GREATER: u32 = 0xc;

/// Length of the program in words.
const WORDS: usize = 27;

/// The program.
pub(super) fn code() -> Vec<u8> {
    use Argument::{MinusOne, Number, SignalSet};
    let mut asm = Assembler::default();
    asm.syscall(RT_SIGPROCMASK, &[Number(0 /* SIG_BLOCK */), SignalSet, Number(0), Number(8)]);
    let reap = asm.here();
    // Any child, WNOHANG.
    asm.syscall(WAIT4, &[MinusOne, Number(0), Number(1), Number(0)]);
    asm.compare(0);
    asm.branch_back(GREATER, reap);
    let wait = asm.here();
    asm.syscall(RT_SIGTIMEDWAIT, &[SignalSet, Number(0), Number(0), Number(8)]);
    asm.compare(SIGCHLD);
    asm.branch_back(EQUAL, reap);
    asm.compare(0);
    asm.branch_back(NEGATIVE, wait);
    asm.syscall(EXIT, &[Number(0)]);
    asm.words.into_iter().flat_map(u32::to_le_bytes).collect()
}

/// An argument of a system call.
#[derive(Clone, Copy)]
enum Argument {
    /// A number of at most 16 bits.
    Number(u32),
    MinusOne,
    /// The address after the program.
    SignalSet,
}

/// A minimal assembler: system calls with constant arguments, comparison of their results, short backward branches.
#[derive(Default)]
struct Assembler {
    words: Vec<u32>,
}

impl Assembler {
    fn here(&self) -> usize {
        self.words.len()
    }

    /// The number goes into register 8, arguments into registers 0 and up.
    fn syscall(&mut self, number: u32, arguments: &[Argument]) {
        self.words.push(move_wide(8, number));
        for (register, argument) in (0_u32..).zip(arguments) {
            let word = match argument {
                Argument::Number(number) => move_wide(register, *number),
                Argument::MinusOne => 0x9280_0000 | register, // movn x, #0
                // `adr x` with a distance in whole words, so its lowest two bits are zero.
                Argument::SignalSet => 0x1000_0000 | (self.distance(WORDS) << 5) | register,
            };
            self.words.push(word);
        }
        self.words.push(0xd400_0001); // svc #0
    }

    /// `cmp w0, #number`
    fn compare(&mut self, number: u32) {
        self.words.push(0x7100_001f | (number << 10));
    }

    /// `b.condition` to an earlier word.
    fn branch_back(&mut self, condition: u32, target: usize) {
        self.words.push(0x5400_0000 | (self.distance(target) << 5) | condition);
    }

    /// Distance from the next word to `target`, in words, as 19 bits.
    fn distance(&self, target: usize) -> u32 {
        let words = i32::try_from(target).unwrap_or(0) - i32::try_from(self.here()).unwrap_or(0);
        words.cast_unsigned() & 0x7_ffff
    }
}

/// `movz x, #number`
fn move_wide(register: u32, number: u32) -> u32 {
    0xd280_0000 | (number << 5) | register
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Same output as `llvm-mc --triple=aarch64 --show-encoding`.
    #[test]
    fn the_machine_code_is_that_of_an_assembler() {
        let code = code();
        assert_eq!(code.len(), WORDS * 4);
        let words: Vec<u32> =
            code.chunks(4).map(|word| u32::from_le_bytes(word.try_into().unwrap())).collect();
        assert_eq!(words, EXPECTED);
    }

    const EXPECTED: [u32; WORDS] = [
        0xd280_10e8,
        0xd280_0000,
        0x1000_0321,
        0xd280_0002,
        0xd280_0103,
        0xd400_0001,
        0xd280_2088,
        0x9280_0000,
        0xd280_0001,
        0xd280_0022,
        0xd280_0003,
        0xd400_0001,
        0x7100_001f,
        0x54ff_ff2c,
        0xd280_1128,
        0x1000_0180,
        0xd280_0001,
        0xd280_0002,
        0xd280_0103,
        0xd400_0001,
        0x7100_441f,
        0x54ff_fe20,
        0x7100_001f,
        0x54ff_fee4,
        0xd280_0ba8,
        0xd280_0000,
        0xd400_0001,
    ];
}
