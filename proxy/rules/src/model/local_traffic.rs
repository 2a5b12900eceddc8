//! Which senders are the cluster's own pods, in the four ways in which nodes can tell (`--detect-local-mode`).

use std::fmt;

use super::Cidr;

/// How the traffic of pods is told from everybody else's. What is not theirs is masqueraded on its way to a cluster
/// address, and is held to the external policy Local.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum LocalTraffic {
    /// It comes from the blocks of all pods of the cluster (`ClusterCIDR`).
    #[default]
    Cluster,
    /// It comes from these blocks, those of this node's pods (`NodeCIDR`).
    Blocks(Vec<Cidr>),
    /// It comes in by this interface (`BridgeInterface`).
    Interface(InterfaceName),
    /// It comes in by an interface whose name begins so (`InterfaceNamePrefix`).
    InterfacePrefix(InterfaceName),
}

/// Name of an interface, or its beginning: 1 to 15 bytes, none of them zero.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct InterfaceName([u8; Self::LEN]);

impl InterfaceName {
    /// Bytes of a name as the kernel holds it, the zero at its end included (`IFNAMSIZ`).
    pub const LEN: usize = 16;

    /// A name; none when it is empty or too long.
    pub fn new(text: &str) -> Option<Self> {
        let mut bytes = [0; Self::LEN];
        let fits = !text.is_empty() && text.len() < Self::LEN && !text.contains('\0');
        bytes.get_mut(..text.len()).filter(|_| fits)?.copy_from_slice(text.as_bytes());
        Some(Self(bytes))
    }

    /// As the kernel compares whole names: with zeros behind it.
    pub fn padded(&self) -> &[u8; Self::LEN] {
        &self.0
    }

    /// The name itself.
    pub fn as_bytes(&self) -> &[u8] {
        self.0.split(|byte| *byte == 0).next().unwrap_or_default()
    }
}

impl fmt::Display for InterfaceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&String::from_utf8_lossy(self.as_bytes()))
    }
}

impl fmt::Debug for InterfaceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_one_to_fifteen_bytes() {
        let name = InterfaceName::new("cbr0").unwrap();
        assert_eq!((name.as_bytes(), name.to_string().as_str()), (&b"cbr0"[..], "cbr0"));
        assert_eq!(name.padded(), b"cbr0\0\0\0\0\0\0\0\0\0\0\0\0");
        let longest = "a".repeat(15);
        assert_eq!(InterfaceName::new(&longest).unwrap().to_string(), longest);
        for text in ["", "a\0b", "sixteen-bytes-xx"] {
            assert_eq!(InterfaceName::new(text), None, "{text:?}");
        }
    }
}
