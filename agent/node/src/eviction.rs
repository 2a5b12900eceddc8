//! Node-pressure eviction: when resources are reclaimed, and which pods are evicted.
//!
//! ```text
//!   readings ─► decide ─┬─► pressure: conditions, admission
//!                       └─► reclaim: what is short, how hard ─► images, dead containers ─► enough?
//!                                                                                          │ no
//!                                                              rank ─► one pod is evicted ◄┘
//! ```
//!
//! Pods are evicted one at a time: after each the signals are read again, so no more pods end than necessary.

pub mod decide;
pub mod rank;
pub mod storage;
pub mod thresholds;

use std::collections::BTreeMap;
use std::time::Duration;

/// An eviction signal, as in Kubernetes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Signal {
    /// Available memory of the machine.
    MemoryAvailable,
    /// Available memory within the limit of all pods together.
    AllocatableMemoryAvailable,
    /// Free space of the node's file system: volumes, logs.
    NodefsAvailable,
    /// Free inodes of the node's file system.
    NodefsInodesFree,
    /// Free space of the file system with images and writable layers.
    ImagefsAvailable,
    /// Free inodes of that file system.
    ImagefsInodesFree,
    /// Free process ids.
    PidAvailable,
}

impl Signal {
    /// All signals by urgency; memory comes first.
    pub const ALL: [Self; 7] = [
        Self::MemoryAvailable,
        Self::AllocatableMemoryAvailable,
        Self::NodefsAvailable,
        Self::NodefsInodesFree,
        Self::ImagefsAvailable,
        Self::ImagefsInodesFree,
        Self::PidAvailable,
    ];

    /// Name in configuration and metrics.
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

    /// Parses a name of the configuration.
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|signal| signal.as_str() == text)
    }

    /// Name of the resource in messages.
    pub fn resource(self) -> &'static str {
        match self {
            Self::MemoryAvailable | Self::AllocatableMemoryAvailable => "memory",
            Self::NodefsAvailable | Self::ImagefsAvailable => "ephemeral-storage",
            Self::NodefsInodesFree | Self::ImagefsInodesFree => "inodes",
            Self::PidAvailable => "pids",
        }
    }

    /// The node condition of the signal.
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

/// A reading of a signal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reading {
    /// Available amount.
    pub available: u64,
    /// Total amount, for percentages.
    pub capacity: u64,
    /// Time of the reading, since boot.
    pub at: Duration,
}

/// All signals that could be read.
pub type Readings = BTreeMap<Signal, Reading>;
