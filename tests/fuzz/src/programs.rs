//! Files that programs read: configuration, and the log of the store.

/// The proxy's configuration.
pub mod proxy_config {
    use std::sync::OnceLock;

    use clap::Parser as _;
    use orch_proxy::config;
    use orch_proxy::flags::Flags;
    use proxy_rules::model::Cidr;

    use crate::api;

    fn flags() -> &'static Flags {
        static FLAGS: OnceLock<Flags> = OnceLock::new();
        FLAGS.get_or_init(|| Flags::parse_from(["proxy", "--naming=kubernetes"]))
    }

    /// Reads the text as a configuration, and as a range of pods.
    pub fn check(bytes: &[u8]) {
        let Ok(text) = std::str::from_utf8(bytes) else { return };
        if let Ok(range) = text.parse::<Cidr>() {
            assert!(range.bits() <= 128);
        }
        let _ = config::load_running(flags(), text);
    }

    /// What the program writes by itself, and ranges.
    pub fn seeds() -> Vec<Vec<u8>> {
        let mut all: Vec<_> = config::write_config(flags(), api::names())
            .map(String::into_bytes)
            .into_iter()
            .collect();
        all.extend(crate::texts(&["10.0.0.0/8", "fd00::/64"]));
        all
    }
}

/// Frames of the store's log.
pub mod store_log {
    /// What was read is written as it was.
    pub fn check(bytes: &[u8]) {
        if let Some(written) = apiserver_store::reencode_payload(bytes) {
            assert_eq!(written, bytes);
        }
    }

    /// A write and a removal.
    pub fn seeds() -> Vec<Vec<u8>> {
        let change = |value: Option<&[u8]>| {
            let mut bytes = [1_u64.to_le_bytes(), 2_u64.to_le_bytes()].concat();
            bytes.extend(3_u32.to_le_bytes());
            let len = value.map_or(u32::MAX, |value| u32::try_from(value.len()).unwrap_or(0));
            bytes.extend(len.to_le_bytes());
            bytes.extend(b"a/b");
            bytes.extend(value.unwrap_or_default());
            bytes
        };
        vec![change(Some(b"value")), [change(Some(b"")), change(None)].concat()]
    }
}
