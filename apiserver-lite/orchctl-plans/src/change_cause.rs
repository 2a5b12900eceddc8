//! The command that changed an object, in the annotation that the history of rollouts shows.

use std::ffi::OsString;

use proto_api::names::Names;
use serde_json::Value;

use crate::keep::map_at;

/// Flags whose values are not written into objects.
const SECRET_FLAGS: [&str; 3] = ["--token", "--password", "--username"];

/// A command as it was called, without the directory of its program and without secrets.
pub fn command_line(words: impl IntoIterator<Item = OsString>) -> String {
    let mut words = words.into_iter().map(|word| word.to_string_lossy().into_owned());
    let program = words.next().unwrap_or_default();
    let mut line = program.rsplit('/').next().unwrap_or_default().to_owned();
    let mut is_secret = false;
    for word in words {
        line.push(' ');
        if is_secret {
            line.push_str("CLASSIFIED");
            is_secret = false;
            continue;
        }
        match word.split_once('=') {
            Some((flag, _)) if SECRET_FLAGS.contains(&flag) => {
                line.push_str(flag);
                line.push_str("=CLASSIFIED");
            }
            _ if word == "--record" => line.push_str("--record=true"),
            _ => {
                is_secret = SECRET_FLAGS.contains(&word.as_str());
                line.push_str(&word);
            }
        }
    }
    line
}

/// Writes the command into the object's annotation.
pub fn annotate(names: &Names, object: &mut Value, command: &str) {
    let annotations = map_at(object, &["metadata", "annotations"]);
    annotations.insert(names.label("change-cause"), command.into());
}

#[cfg(test)]
mod tests {
    use proto_api::names::Profile;
    use serde_json::json;

    use super::*;

    #[test]
    fn commands_are_recorded_without_secrets() {
        for (line, expected) in [
            (
                "/usr/bin/orchctl set image deploy/web c=i:2 --record",
                "orchctl set image deploy/web c=i:2 --record=true",
            ),
            (
                "orchctl --token abc apply -f x --record=true",
                "orchctl --token CLASSIFIED apply -f x --record=true",
            ),
            (
                "orchctl --password=a=b --username u -n n",
                "orchctl --password=CLASSIFIED --username CLASSIFIED -n n",
            ),
            ("", ""),
        ] {
            assert_eq!(command_line(line.split(' ').map(OsString::from)), expected);
        }
    }

    #[test]
    fn the_annotation_is_the_one_that_histories_show() {
        let mut object = json!({"kind": "Deployment", "metadata": {"annotations": {"a": "b"}}});
        annotate(Names::new(Profile::Kubernetes), &mut object, "x");
        let annotations = json!({"a": "b", "kubernetes.io/change-cause": "x"});
        assert_eq!(object["metadata"]["annotations"], annotations);
        let mut broken = json!({"metadata": "text"});
        annotate(Names::new(Profile::Kubernetes), &mut broken, "x");
        assert_eq!(
            broken,
            json!({"metadata": {"annotations": {"kubernetes.io/change-cause": "x"}}})
        );
    }
}
