//! What the reference of the agent says of its configuration file: fields with the flags that override them, and what has no effect.

use proto_api::names::{Names, Profile};
use proto_daemon::exit::Failure;
use proto_daemon::reference::{FileReference, Reference};

use crate::file::FileConfig;
use crate::flags::OVERRIDES;
use crate::settings::file_types;
use crate::validate::WITHOUT_EFFECT;

/// Adds it to the reference.
///
/// # Errors
/// The defaults are no JSON.
pub fn describe(reference: &mut Reference) -> Result<(), Failure> {
    let [_, kubelet] = file_types(Names::new(Profile::Kubernetes));
    let mut file = FileReference::new(kubelet, &FileConfig::default())?;
    let of = |path: &str| OVERRIDES.iter().find(|(_, field, ..)| *field == path);
    file.note(|path| of(path).map(|(flag, ..)| (*flag).to_owned()), without_effect);
    reference.file = Some(file);
    let unused = OVERRIDES.iter().filter(|(_, path, ..)| without_effect(path).is_some());
    reference.mark_without_effect(&unused.map(|(flag, ..)| *flag).collect::<Vec<_>>());
    Ok(())
}

/// Why a field has no effect. A section without effect has no fields with one.
fn without_effect(path: &str) -> Option<&'static str> {
    let section = path.split('.').next()?;
    WITHOUT_EFFECT.iter().find(|(field, _)| *field == section).map(|(_, why)| *why)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn flags_follow_their_fields() {
        let mut reference = Reference::new("1", crate::Flags::command());
        describe(&mut reference).unwrap();
        let fields = reference.file.unwrap().fields;
        let of = |path: &str| fields.iter().find(|field| field.path == path).expect(path);
        let anonymous = of("authentication.anonymous.enabled");
        assert_eq!(anonymous.flag.as_deref(), Some("anonymous-auth"));
        assert_eq!(
            of("kubeAPIQPS").without_effect.as_deref(),
            Some("requests are bounded by concurrency")
        );
        assert!(of("maxPods").without_effect.is_none());
        let flags = &reference.command.flags;
        let has_effect = |name: &str| {
            flags.iter().find(|flag| flag.name == name).is_some_and(|flag| !flag.is_without_effect)
        };
        assert!(has_effect("max-pods") && has_effect("kubeconfig") && !has_effect("kube-api-qps"));
        for (path, _) in WITHOUT_EFFECT {
            assert!(
                fields.iter().any(|field| field.path.split('.').next() == Some(path)),
                "{path}"
            );
        }
    }
}
