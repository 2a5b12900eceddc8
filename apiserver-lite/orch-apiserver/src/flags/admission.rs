//! Flags of admission.

use std::path::PathBuf;

use apiserver_core::config::{AdmissionPlugin, AdmissionSettings, PodSecuritySettings};
use proto_daemon::flags::FlagError;

/// The flags.
#[derive(clap::Args, Clone, Debug)]
pub struct AdmissionFlags {
    /// Admission plugins that run besides those that always do. All that this server has do but PodNodeSelector, unless --disable-admission-plugins names them.
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = str::parse::<AdmissionPlugin>)]
    enable_admission_plugins: Vec<AdmissionPlugin>,
    /// Admission plugins that do not run.
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = parse_disabled)]
    disable_admission_plugins: Vec<AdmissionPlugin>,
    /// File with the configuration of admission plugins; of PodSecurity here.
    #[arg(long, value_name = "FILE")]
    admission_control_config_file: Option<PathBuf>,
}

impl AdmissionFlags {
    /// What the flags say.
    pub fn settings(self) -> AdmissionSettings {
        AdmissionSettings {
            config_file: self.admission_control_config_file,
            enabled: self.enable_admission_plugins,
            disabled: self.disable_admission_plugins,
            pod_security: PodSecuritySettings::default(),
        }
    }
}

fn parse_disabled(text: &str) -> Result<AdmissionPlugin, FlagError> {
    let plugin: AdmissionPlugin =
        text.parse().map_err(|unknown| FlagError::new(format!("{unknown}")))?;
    match plugin.is_required() {
        true => Err(FlagError::new(format!("{plugin:?} cannot be disabled here"))),
        false => Ok(plugin),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Alone {
        #[command(flatten)]
        flags: AdmissionFlags,
    }

    fn parse(args: &[&str]) -> Result<AdmissionSettings, String> {
        let alone = Alone::try_parse_from([&["program"], args].concat());
        alone.map(|alone| alone.flags.settings()).map_err(|error| error.to_string())
    }

    #[test]
    fn plugins_are_named_as_for_kubernetes() {
        assert_eq!(parse(&[]), Ok(AdmissionSettings::default()));
        let settings = parse(&[
            "--enable-admission-plugins=NodeRestriction,PodSecurity",
            "--disable-admission-plugins=Priority",
            "--admission-control-config-file=/a",
        ])
        .unwrap();
        assert_eq!(settings.config_file, Some("/a".into()));
        assert!(settings.runs(AdmissionPlugin::LimitRanger), "enabled or not");
        assert!(!settings.runs(AdmissionPlugin::Priority));
        assert_eq!(settings.contradiction(), None);
        let both =
            parse(&["--enable-admission-plugins=Priority", "--disable-admission-plugins=Priority"]);
        assert_eq!(both.unwrap().contradiction(), Some(AdmissionPlugin::Priority));
        for (mistake, expected) in [
            ("--enable-admission-plugins=ImagePolicyWebhook", "is unknown to this server"),
            ("--disable-admission-plugins=Everything", "is unknown to this server"),
            ("--disable-admission-plugins=NodeRestriction", "cannot be disabled"),
        ] {
            let error = parse(&[mistake]).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }
}
