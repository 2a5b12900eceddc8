//! The program that gives a user's credentials: flags of `config set-credentials`.

use orchctl_client::CommandError;
use serde_json::{Map, Value, json};

/// What changes.
#[derive(clap::Args, Clone, Debug, Default)]
pub(super) struct ExecFlags {
    /// Program that gives the credentials; empty for none
    #[arg(long, value_name = "PROGRAM")]
    exec_command: Option<String>,
    /// Version of what it prints, as client.authentication.k8s.io/v1
    #[arg(long, value_name = "VERSION")]
    exec_api_version: Option<String>,
    /// Argument of the program; repeatable
    #[arg(long, value_name = "ARGUMENT", allow_hyphen_values = true)]
    exec_arg: Vec<String>,
    /// Variable of the program as NAME=VALUE, or NAME- to remove one; repeatable
    #[arg(long, value_name = "VARIABLE")]
    exec_env: Vec<String>,
    /// Whether the program may ask questions: Never, IfAvailable (at a terminal) or Always; IfAvailable where v1 needs one
    #[arg(long, value_name = "MODE", value_parser = MODES)]
    exec_interactive_mode: Option<String>,
    /// Whether the program learns of the cluster
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    exec_provide_cluster_info: Option<bool>,
}

/// How a program may ask questions.
pub(super) const MODES: [&str; 3] = ["Never", "IfAvailable", "Always"];

impl ExecFlags {
    /// Changes the `exec` of a user. As in kubectl a new program has no arguments but those that are given with it, and without a program the other flags
    /// change nothing.
    ///
    /// # Errors
    /// A variable that has no value.
    pub(super) fn apply(&self, user: &mut Map<String, Value>) -> Result<(), CommandError> {
        match self.exec_command.as_deref() {
            Some("") => drop(user.shift_remove("exec")),
            Some(command) => {
                let exec = user.entry("exec").or_insert_with(|| json!({}));
                if !exec.is_object() {
                    *exec = json!({});
                }
                exec["command"] = json!(command);
                exec["args"] = Value::Null;
            }
            None => {}
        }
        let Some(Value::Object(exec)) = user.get_mut("exec") else { return Ok(()) };
        if let Some(version) = &self.exec_api_version {
            exec.insert("apiVersion".to_owned(), json!(version));
        }
        if !self.exec_arg.is_empty() {
            exec.insert("args".to_owned(), json!(self.exec_arg));
        }
        let mut env = exec.get("env").and_then(Value::as_array).cloned().unwrap_or_default();
        for text in &self.exec_env {
            let (name, value) = parse_variable(text)?;
            env.retain(|entry| entry["name"] != name);
            env.extend(value.map(|value| json!({"name": name, "value": value})));
        }
        let env = if env.is_empty() { Value::Null } else { Value::Array(env) };
        exec.insert("env".to_owned(), env);
        match self.exec_provide_cluster_info {
            Some(provides) => drop(exec.insert("provideClusterInfo".to_owned(), json!(provides))),
            None => drop(exec.entry("provideClusterInfo").or_insert(json!(false))),
        }
        let is_unset =
            exec.get("interactiveMode").and_then(Value::as_str).is_none_or(str::is_empty);
        let version = exec.get("apiVersion").and_then(Value::as_str).unwrap_or_default();
        // Programs of v1 are not run without one.
        let usual = (is_unset && version.ends_with("/v1")).then_some("IfAvailable");
        if let Some(mode) = self.exec_interactive_mode.as_deref().or(usual) {
            exec.insert("interactiveMode".to_owned(), json!(mode));
        }
        Ok(())
    }
}

/// A variable and its value; no value for one that is removed.
fn parse_variable(text: &str) -> Result<(&str, Option<&str>), CommandError> {
    let set = text.split_once('=').map(|(name, value)| (name, Some(value)));
    let removed = || text.strip_suffix('-').map(|name| (name, None));
    set.or_else(removed).ok_or_else(|| {
        CommandError::with_text(format!("--exec-env {text:?} is neither NAME=VALUE nor NAME-"))
    })
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[derive(clap::Parser, Debug)]
    struct Line {
        #[command(flatten)]
        exec: ExecFlags,
    }

    fn changed(user: Value, flags: &[&str]) -> Option<Value> {
        let line = Line::try_parse_from([&["set-credentials"], flags].concat()).expect("flags");
        let mut user: Map<String, Value> = serde_json::from_value(user).expect("a user");
        line.exec.apply(&mut user).ok()?;
        Some(Value::Object(user))
    }

    #[test]
    fn a_program_is_set_changed_and_removed() {
        let flags = [
            "--exec-command=get-token",
            "--exec-api-version=v1",
            "--exec-arg=-x",
            "--exec-arg=y",
            "--exec-env=A=1",
            "--exec-env=B=2=3",
        ];
        let set = changed(json!({"token": "t"}), &flags).expect("changed");
        let variable = |name: &str, value: &str| json!({"name": name, "value": value});
        assert_eq!(
            set,
            json!({"token": "t", "exec": {"command": "get-token", "apiVersion": "v1", "args": ["-x", "y"],
                "env": [variable("A", "1"), variable("B", "2=3")], "provideClusterInfo": false}})
        );
        let other = changed(set.clone(), &["--exec-command=c", "--exec-env=A-", "--exec-env=B=4"]);
        let other = other.expect("changed");
        assert_eq!(other["exec"]["args"], Value::Null);
        assert_eq!(other["exec"]["env"], json!([variable("B", "4")]));
        assert_eq!(other["exec"].get("interactiveMode"), None, "only v1 needs one");
        assert_eq!(changed(set.clone(), &["--exec-command="]), Some(json!({"token": "t"})));
        assert_eq!(changed(set.clone(), &["--exec-env=x"]), None);
        assert_eq!(changed(json!({"exec": "x"}), &["--exec-env=A=1"]), Some(json!({"exec": "x"})));
    }

    #[test]
    fn a_program_of_v1_has_what_it_takes_to_be_run() {
        let command = "--exec-command=c";
        let v1 = "--exec-api-version=client.authentication.k8s.io/v1";
        let beta = "--exec-api-version=client.authentication.k8s.io/v1beta1";
        let always = "--exec-interactive-mode=Always";
        for (flags, mode, provides) in [
            (&[command, v1][..], json!("IfAvailable"), false),
            (&[command, v1, always], json!("Always"), false),
            (&[command, beta], Value::Null, false),
            (&[command, beta, always, "--exec-provide-cluster-info"], json!("Always"), true),
        ] {
            let exec = changed(json!({}), flags).expect("changed")["exec"].clone();
            assert_eq!(
                (&exec["interactiveMode"], &exec["provideClusterInfo"]),
                (&mode, &json!(provides))
            );
            // A later change leaves it.
            let user = json!({"exec": exec});
            let again = changed(user, &["--exec-arg=x"]).expect("changed");
            assert_eq!(again["exec"]["interactiveMode"], mode, "{flags:?}");
        }
        let later = json!({"exec": {"command": "c", "apiVersion": "old"}});
        let later = changed(later, &[v1]).expect("changed");
        assert_eq!(later["exec"]["interactiveMode"], "IfAvailable");
        let wrong = ["set-credentials", "--exec-interactive-mode=Sometimes"];
        assert!(Line::try_parse_from(wrong).is_err());
    }
}
