//! Sysctls with integer values, in `/proc/sys`.

use std::io;
use std::path::PathBuf;

/// One sysctl, such as `net/ipv4/ip_forward`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sysctl(pub &'static str);

/// A sysctl cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum SysctlError {
    /// It cannot be read; `NotFound` if this kernel does not have it.
    #[error("cannot read {0}")]
    Read(&'static str, #[source] io::Error),
    /// Its value is not an integer.
    #[error("expected a number in {0}, found {1:?}")]
    Number(&'static str, String),
    /// It cannot be written.
    #[error("cannot set {0} to {1}")]
    Write(&'static str, u64, #[source] io::Error),
}

/// Result of [`Sysctl::ensure`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SysctlChange {
    /// It had the value.
    Unchanged,
    /// It was changed; its previous value.
    Changed(u64),
}

impl Sysctl {
    /// Reads its value.
    pub fn read(self) -> Result<u64, SysctlError> {
        let text =
            std::fs::read_to_string(self.path()).map_err(|e| SysctlError::Read(self.0, e))?;
        text.trim().parse().map_err(|_| SysctlError::Number(self.0, text.trim().to_owned()))
    }

    /// Sets it if the value differs: writing needs privileges that reading does not.
    pub fn ensure(self, value: u64) -> Result<SysctlChange, SysctlError> {
        let before = self.read()?;
        if before == value {
            return Ok(SysctlChange::Unchanged);
        }
        std::fs::write(self.path(), value.to_string())
            .map_err(|e| SysctlError::Write(self.0, value, e))?;
        Ok(SysctlChange::Changed(before))
    }

    fn path(self) -> PathBuf {
        PathBuf::from("/proc/sys").join(self.0)
    }
}
