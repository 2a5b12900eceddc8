//! When the node takes back what its pods use, and from whom.
//!
//! ```text
//!   readings ─► decide ─┬─► pressure: conditions, admission
//!                       └─► reclaim: what is short, how hard ─► images, dead containers ─► enough?
//!                                                                                          │ no
//!                                                              rank ─► one pod is evicted ◄┘
//! ```
//!
//! One pod at a time: after each the signals are read again, so that a shortage costs no more pods than it must.

pub mod decide;
pub mod rank;
pub mod storage;
pub mod thresholds;

use std::collections::BTreeMap;
use std::time::Duration;

/// Something that can run short.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Signal {
    /// Memory of the machine.
    MemoryAvailable,
    /// Memory that pods together may use.
    AllocatableMemoryAvailable,
    /// Space on the agent's disk: volumes, logs.
    NodefsAvailable,
    /// Inodes of that disk.
    NodefsInodesFree,
    /// Space on the disk with images and writable layers.
    ImagefsAvailable,
    /// Inodes of that disk.
    ImagefsInodesFree,
    /// Process ids.
    PidAvailable,
}

impl Signal {
    /// All, in the order in which shortages are dealt with: memory cannot wait.
    pub const ALL: [Self; 7] = [
        Self::MemoryAvailable,
        Self::AllocatableMemoryAvailable,
        Self::NodefsAvailable,
        Self::NodefsInodesFree,
        Self::ImagefsAvailable,
        Self::ImagefsInodesFree,
        Self::PidAvailable,
    ];

    /// As configuration and metrics name it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::MemoryAvailable => "memory.available",
            Self::AllocatableMemoryAvailable => "allocatableMemory.available",
            Self::NodefsAvailable => "nodefs.available",
            Self::NodefsInodesFree => "nodefs.inodesFree",
            Self::ImagefsAvailable => "imagefs.available",
            Self::ImagefsInodesFree => "imagefs.inodesFree",
            Self::PidAvailable => "pid.available",
        }
    }

    /// Reads a name of configuration.
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|signal| signal.as_str() == text)
    }

    /// The resource that runs short, as messages name it.
    pub fn resource(self) -> &'static str {
        match self {
            Self::MemoryAvailable | Self::AllocatableMemoryAvailable => "memory",
            Self::NodefsAvailable | Self::ImagefsAvailable => "ephemeral-storage",
            Self::NodefsInodesFree | Self::ImagefsInodesFree => "inodes",
            Self::PidAvailable => "pids",
        }
    }

    /// The condition of the node while it is short.
    pub fn condition(self) -> Condition {
        match self {
            Self::MemoryAvailable | Self::AllocatableMemoryAvailable => Condition::Memory,
            Self::NodefsAvailable
            | Self::NodefsInodesFree
            | Self::ImagefsAvailable
            | Self::ImagefsInodesFree => Condition::Disk,
            Self::PidAvailable => Condition::Pid,
        }
    }
}

/// A pressure condition of the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Condition {
    /// `MemoryPressure`.
    Memory,
    /// `DiskPressure`.
    Disk,
    /// `PIDPressure`.
    Pid,
}

/// A signal as it was read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reading {
    /// What is left.
    pub available: u64,
    /// What there is in all, for percentages.
    pub capacity: u64,
    /// When it was read, since boot.
    pub at: Duration,
}

/// All signals that could be read.
pub type Readings = BTreeMap<Signal, Reading>;
