//! Inputs of the agent: container logs, its own records, names and credentials, D-Bus messages.

// A private module of agent-logs, which stands alone.
#[allow(dead_code, reason = "the fuzzer uses a part of the file")]
#[path = "../../../agent/logs/src/cri_log.rs"]
mod cut;

/// Lines of logs as runtimes write them.
pub mod cri_log {
    use super::cut;

    /// Cuts the bytes in pieces of different lengths; the outcome is the same, and grows by line ends and times only.
    pub fn check(bytes: &[u8]) {
        let [size, rest @ ..] = bytes else { return };
        let since = (size & 0x40 != 0).then(|| "2024-01-01T00:00:02Z".to_owned());
        let limit = (size & 0x80 != 0).then_some(100);
        let run = |piece: usize| {
            let mut cutter = cut::Cutter::new(size & 0x20 != 0, since.clone(), limit);
            let mut out = Vec::new();
            for piece in rest.chunks(piece) {
                out.extend(cutter.push(piece));
            }
            out.extend(cutter.finish());
            out
        };
        let whole = run(rest.len().max(1));
        assert_eq!(run(usize::from(size & 0x1f) + 1), whole);
        assert!(
            whole.len() <= rest.len() + 1 && limit.is_none_or(|limit| whole.len() as u64 <= limit)
        );
        if let Some(start) = cut::tail_start(rest, u64::from(*size)) {
            assert!(start <= rest.len());
        }
    }

    /// Whole lines, parts of lines, both streams, foreign lines.
    pub fn seeds() -> Vec<Vec<u8>> {
        let log = "2024-01-01T00:00:01.5Z stdout F one\n2024-01-01T00:00:02Z stderr P tw\n\
            2024-01-01T00:00:02.1Z stderr F o\nnot from a runtime\n2024-01-01T00:00:04Z stdout F:x four\n";
        [0x03_u8, 0x27, 0x67, 0xff].map(|size| [&[size], log.as_bytes()].concat()).to_vec()
    }
}

/// Records of the journal.
pub mod journal {
    use agent_pod::record::PodRecord;

    /// What was read is written and read alike, before and after a boot.
    pub fn check(bytes: &[u8]) {
        let Ok(record) = serde_json::from_slice::<PodRecord>(bytes) else { return };
        let stored = serde_json::to_vec(&record).expect("a record that was read can be written");
        let again = serde_json::from_slice::<PodRecord>(&stored).expect("own bytes");
        assert_eq!(again, record);
        let _ = again.after_reboot();
    }

    /// A pod's record at its beginning, and with each list begun.
    pub fn seeds() -> Vec<Vec<u8>> {
        serde_json::to_vec(&PodRecord::default()).into_iter().chain([b"{}".to_vec()]).collect()
    }
}

/// Names of images, credentials of registries, variables in texts.
pub mod node_texts {
    use agent_node::image_name::ImageName;
    use agent_node::keyring::{self, Keyring};
    use agent_pod::expand::expand;

    /// Reads the bytes as each of them.
    pub fn check(bytes: &[u8]) {
        for ring in [Keyring::config_json(bytes), Keyring::dockercfg(bytes)].into_iter().flatten() {
            let _ = ring.lookup("registry.example.com/a/b");
        }
        let Ok(text) = std::str::from_utf8(bytes) else { return };
        let _ = ImageName::parse(text);
        let (pattern, name) = text.split_once('\n').unwrap_or((text, "a.example.com:80/b"));
        let _ = keyring::matches(pattern, name);
        let grown = expand(text, text.len(), |name| (name == "A").then_some("value"));
        assert!(grown.is_none_or(|grown| grown.len() <= text.len()));
    }

    /// One of each form.
    pub fn seeds() -> Vec<Vec<u8>> {
        crate::texts(&[
            "registry.example.com:5000/a/b_c:v1.0",
            "busybox",
            "a/b@sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
            "*.example.com:80/b\na.example.com:80/b/c",
            "$(A) $$(A) $(B) $(A",
            r#"{"auths":{"*.example.com":{"auth":"dTpw","username":"u","password":"p"}}}"#,
            r#"{"https://example.com/v1/":{"auth":"dTpw"}}"#,
        ])
    }
}

/// Messages of D-Bus.
pub mod dbus {
    use agent_host::dbus::message::{Argument, Message, PREFIX_LEN};

    /// What was read is written and read alike.
    pub fn check(bytes: &[u8]) {
        if let Some(prefix) = bytes.get(..PREFIX_LEN) {
            let _ = Message::len_of(prefix);
        }
        let Ok(message) = Message::decode(bytes) else { return };
        let _ = (message.text(), message.truth(), message.descriptor(), message.long_in_variant());
        assert!(message.body.len() <= bytes.len());
        // Whom it comes from is the bus's to say: not written.
        let sent = Message { sender: String::new(), ..message };
        let written = sent.encode();
        let len = written.get(..PREFIX_LEN).and_then(|prefix| Message::len_of(prefix).ok());
        assert!(len.is_none_or(|len| len == written.len()));
        match Message::decode(&written) {
            Ok(again) => assert_eq!(again, sent),
            Err(error) => panic!("{sent:?} is not read back: {error}"),
        }
    }

    /// A call and an answer.
    pub fn seeds() -> Vec<Vec<u8>> {
        let arguments = [Argument::Text("shutdown"), Argument::Int(-1), Argument::Text("delay")];
        let call = Message::call("org.a", "/org/a", ("org.a.Manager", "Inhibit"), &arguments);
        let mut answer = call.clone();
        (answer.serial, answer.reply_to, answer.signature) = (8, 7, "v".into());
        answer.body = vec![1, b't', 0, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8];
        vec![call.encode(), answer.encode()]
    }
}
