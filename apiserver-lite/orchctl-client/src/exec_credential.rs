//! Credential programs: `exec` of a user of the client configuration names a program that prints a token or a certificate, and until when it is valid.

use std::io::{IsTerminal as _, Read as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use proto_api::MicroTime;
use proto_api::names::{Names, Profile};
use proto_client::config::{Identity, Pem};
use serde_json::{Value, json};

use crate::CommandError;

/// Longest output of a program.
const OUTPUT_LEN_MAX: u64 = 1 << 20;
/// How long a program may run that no person attends. Where there is a terminal, someone may be logging in, and ends the program if it hangs.
const PATIENCE: Duration = Duration::from_secs(120);
/// The pause between looks at a program that has closed its output.
const PAUSE: Duration = Duration::from_millis(10);
/// The variable that has the request of the program.
const INFO_VARIABLE: &str = "KUBERNETES_EXEC_INFO";
/// Versions of the API of such programs, the first of which requires `interactiveMode`.
const VERSIONS: [&str; 2] = ["v1", "v1beta1"];
/// Longest file of authorities.
const AUTHORITY_LEN_MAX: u64 = 1 << 20;
/// What a program learns of the cluster, if it wants that.
const CLUSTER_FIELDS: [&str; 5] =
    ["server", "tls-server-name", "insecure-skip-tls-verify", "proxy-url", "disable-compression"];

/// A program that prints credentials.
#[derive(Clone, Debug)]
pub struct CredentialProgram {
    /// `users[].user.exec`.
    spec: Value,
    /// The cluster that they are for.
    cluster: Value,
    patience: Duration,
}

/// What a program printed.
pub struct ExecCredential {
    /// A bearer token.
    pub token: Option<String>,
    /// A certificate and its key.
    pub identity: Option<Identity>,
    /// Until when they are valid: microseconds since 1970; for the whole run if not set.
    pub expires: Option<i64>,
}

impl CredentialProgram {
    /// The program of a user, if the user has no other credentials.
    ///
    /// # Errors
    /// When the configuration of the program is invalid.
    pub fn from_user(user: &Value, cluster: &Value) -> Result<Option<Self>, CommandError> {
        let Some(spec) = user.get("exec").filter(|spec| !spec.is_null()) else { return Ok(None) };
        let has = |field: &&str| user.get(*field).is_some_and(|value| *value != "");
        if ["token", "tokenFile", "username"].iter().any(has) {
            return Ok(None);
        }
        let program = Self { spec: spec.clone(), cluster: cluster.clone(), patience: PATIENCE };
        if program.text("command").is_empty() {
            return Err(program.error("the configuration names no command"));
        }
        let known = VERSIONS.iter().flat_map(|version| api_versions(version));
        let known: Vec<String> = known.collect();
        if !known.iter().any(|known| known == program.text("apiVersion")) {
            let why = format!(
                "apiVersion {:?} is not one of {}",
                program.text("apiVersion"),
                known.join(", ")
            );
            return Err(program.error(&why));
        }
        let modes = ["Never", "IfAvailable", "Always"];
        match program.text("interactiveMode") {
            "" if !program.text("apiVersion").ends_with("/v1") => {}
            mode if modes.contains(&mode) => {}
            mode => {
                let why = format!("interactiveMode {mode:?} is not one of {}", modes.join(", "));
                return Err(program.error(&why));
            }
        }
        Ok(Some(program))
    }

    fn text(&self, field: &str) -> &str {
        self.spec.get(field).and_then(Value::as_str).unwrap_or_default()
    }

    fn error(&self, why: &str) -> CommandError {
        let command = self.text("command");
        let hint = match self.text("installHint") {
            "" => String::new(),
            hint => format!("\n\n{hint}"),
        };
        CommandError::with_text(format!("getting credentials: exec {command:?}: {why}{hint}"))
    }

    /// Runs the program and reads what it prints.
    ///
    /// # Errors
    /// The program fails, takes too long, or prints something else than credentials.
    pub fn run(&self) -> Result<ExecCredential, CommandError> {
        let typed = std::io::stdin().is_terminal();
        self.run_at(typed, typed || std::io::stderr().is_terminal())
    }

    /// Runs the program: `typed` if standard input is a terminal, `attended` if a person sees what it says.
    fn run_at(&self, typed: bool, attended: bool) -> Result<ExecCredential, CommandError> {
        let interactive = match self.text("interactiveMode") {
            "Never" => false,
            "Always" if !typed => {
                return Err(self.error("it asks questions, and standard input is no terminal"));
            }
            _ => typed,
        };
        let mut command = Command::new(self.text("command"));
        let args = self.spec.get("args").and_then(Value::as_array);
        command.args(args.into_iter().flatten().filter_map(Value::as_str));
        let variables = self.spec.get("env").and_then(Value::as_array);
        for variable in variables.into_iter().flatten() {
            let text = |field: &str| variable.get(field).and_then(Value::as_str);
            if let (Some(name), Some(value)) = (text("name"), text("value")) {
                command.env(name, value);
            }
        }
        command.env(INFO_VARIABLE, self.info(interactive)?.to_string());
        command.stdin(if interactive { Stdio::inherit() } else { Stdio::null() });
        let child = command.stdout(Stdio::piped()).spawn();
        let mut child = child.map_err(|error| self.error(&error.to_string()))?;
        let output = self.output(&mut child, Some(self.patience).filter(|_| !attended));
        if output.is_err() {
            // It may have ended by itself meanwhile.
            let _ = child.kill();
            let _ = child.wait();
        }
        self.parse(&output?)
    }

    /// What the program learns of the request.
    fn info(&self, interactive: bool) -> Result<Value, CommandError> {
        let mut spec = json!({"interactive": interactive});
        if self.spec.get("provideClusterInfo") == Some(&Value::Bool(true)) {
            let mut cluster = serde_json::Map::new();
            for field in CLUSTER_FIELDS {
                if let Some(value) = self.cluster.get(field) {
                    cluster.insert(field.to_owned(), value.clone());
                }
            }
            if let Some(data) = self.authority_data()? {
                cluster.insert("certificate-authority-data".to_owned(), data);
            }
            if let Some(config) = self.cluster_config() {
                cluster.insert("config".to_owned(), config.clone());
            }
            spec["cluster"] = Value::Object(cluster);
        }
        Ok(json!({"apiVersion": self.text("apiVersion"), "kind": "ExecCredential", "spec": spec}))
    }

    /// The authorities of the cluster: its data, or the contents of its file.
    fn authority_data(&self) -> Result<Option<Value>, CommandError> {
        if self.cluster.get("insecure-skip-tls-verify") == Some(&Value::Bool(true)) {
            return Ok(None);
        }
        let set = |field: &str| {
            self.cluster
                .get(field)
                .filter(|value| value.as_str().is_some_and(|text| !text.is_empty()))
        };
        if let Some(data) = set("certificate-authority-data") {
            return Ok(Some(data.clone()));
        }
        let Some(path) = set("certificate-authority").and_then(Value::as_str) else {
            return Ok(None);
        };
        let read = || {
            let mut bytes = Vec::new();
            std::fs::File::open(Path::new(path))?
                .take(AUTHORITY_LEN_MAX + 1)
                .read_to_end(&mut bytes)?;
            Ok::<_, std::io::Error>(bytes)
        };
        let bytes = read().map_err(|error| self.error(&format!("cannot read {path}: {error}")))?;
        if bytes.len() as u64 > AUTHORITY_LEN_MAX {
            return Err(self.error(&format!("{path} is longer than {AUTHORITY_LEN_MAX} bytes")));
        }
        Ok(Some(BASE64.encode(bytes).into()))
    }

    /// What the configuration of the cluster says to such programs, in an extension.
    fn cluster_config(&self) -> Option<&Value> {
        let names = [Names::new(Profile::Kubernetes), <&Names>::default()];
        let known = names.map(|names| format!("{}/exec", names.group("client.authentication")));
        let mut extensions = self.cluster.get("extensions")?.as_array()?.iter();
        let named = |one: &&Value| {
            let name = one.get("name").and_then(Value::as_str);
            name.is_some_and(|name| known.iter().any(|known| known == name))
        };
        extensions.find(named)?.get("extension")
    }

    /// All that the program prints, once it has ended well; for as long as it takes without `patience`.
    fn output(
        &self,
        child: &mut Child,
        patience: Option<Duration>,
    ) -> Result<Vec<u8>, CommandError> {
        let deadline = patience.and_then(|patience| Instant::now().checked_add(patience));
        let slow = || {
            let seconds = patience.unwrap_or_default().as_secs();
            self.error(&format!(
                "it did not end in {seconds} seconds, and there is no terminal to log in at"
            ))
        };
        let Some(stdout) = child.stdout.take() else { return Err(self.error("no output")) };
        let (to, from) = mpsc::channel();
        // A process that outlives the program may keep the pipe open: nothing waits for this thread.
        std::thread::spawn(move || {
            let mut text = Vec::new();
            let read = stdout.take(OUTPUT_LEN_MAX + 1).read_to_end(&mut text);
            let _ = to.send(read.map(|_| text));
        });
        let text = match patience {
            Some(patience) => from.recv_timeout(patience).ok(),
            None => from.recv().ok(),
        };
        let text = text.ok_or_else(slow)?;
        let text = text.map_err(|error| self.error(&error.to_string()))?;
        if text.len() as u64 > OUTPUT_LEN_MAX {
            return Err(self.error(&format!("it printed more than {OUTPUT_LEN_MAX} bytes")));
        }
        loop {
            match child.try_wait().map_err(|error| self.error(&error.to_string()))? {
                Some(status) if status.success() => return Ok(text),
                Some(status) => return Err(self.error(&format!("it failed with {status}"))),
                None if deadline.is_none_or(|deadline| Instant::now() < deadline) => {
                    std::thread::sleep(PAUSE);
                }
                None => return Err(slow()),
            }
        }
    }

    fn parse(&self, text: &[u8]) -> Result<ExecCredential, CommandError> {
        let printed: Value = serde_json::from_slice(text)
            .map_err(|error| self.error(&format!("its output is not valid JSON: {error}")))?;
        let own = |field: &str| printed.get(field).and_then(Value::as_str).unwrap_or_default();
        if own("kind") != "ExecCredential" || own("apiVersion") != self.text("apiVersion") {
            let why = format!(
                "it printed {} of {}, not ExecCredential of {}",
                own("kind"),
                own("apiVersion"),
                self.text("apiVersion")
            );
            return Err(self.error(&why));
        }
        let status = |field: &str| {
            let value = printed.pointer(&format!("/status/{field}")).and_then(Value::as_str);
            value.filter(|value| !value.is_empty()).map(str::to_owned)
        };
        let pem = |text: String| Pem::Data(text.into_bytes());
        let identity = match (status("clientCertificateData"), status("clientKeyData")) {
            (Some(certificate), Some(key)) => {
                Some(Identity { certificate: pem(certificate), key: pem(key) })
            }
            (None, None) => None,
            _ => return Err(self.error("it printed a certificate without key, or a key alone")),
        };
        let token = status("token");
        if token.is_none() && identity.is_none() {
            return Err(self.error("it printed neither a token nor a certificate"));
        }
        let expires = match status("expirationTimestamp") {
            Some(text) => {
                let time = text.parse::<MicroTime>().ok().and_then(|time| time.unix_micros());
                Some(time.ok_or_else(|| self.error(&format!("{text:?} is no time")))?)
            }
            None => None,
        };
        Ok(ExecCredential { token, identity, expires })
    }
}

/// A version with the group of each naming profile.
fn api_versions(version: &str) -> [String; 2] {
    let names = [Names::new(Profile::Kubernetes), <&Names>::default()];
    names.map(|names| format!("{}/{version}", names.group("client.authentication")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user(script: &str) -> Value {
        json!({"exec": {"apiVersion": "client.authentication.k8s.io/v1", "interactiveMode": "Never", "command": "sh",
            "args": ["-c", script], "env": [{"name": "ROLE", "value": "admin"}], "installHint": "install it",
            "provideClusterInfo": true}})
    }

    /// Runs a script that ends by itself.
    fn run(script: &str) -> Result<ExecCredential, String> {
        run_within(Duration::from_mins(1), script)
    }

    fn run_within(patience: Duration, script: &str) -> Result<ExecCredential, String> {
        let cluster = json!({"server": "https://h", "certificate-authority-data": "Y2E="});
        let program = CredentialProgram::from_user(&user(script), &cluster).expect("valid");
        let mut program = program.expect("a program");
        program.patience = patience;
        program.run_at(false, false).map_err(|error| error.to_string())
    }

    const HEAD: &str =
        r#""apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential""#;

    #[test]
    fn a_program_prints_a_token_or_a_certificate() {
        let text = format!(
            r#"echo '{{{HEAD}, "status": {{"token": "'$ROLE'", "expirationTimestamp": "1970-01-01T00:00:02Z"}}}}'"#
        );
        let credential = run(&text).expect("credentials");
        assert_eq!(credential.token.as_deref(), Some("admin"));
        assert_eq!((credential.expires, credential.identity.is_some()), (Some(2_000_000), false));
        let text = format!(
            r#"echo '{{{HEAD}, "status": {{"clientCertificateData": "c", "clientKeyData": "k"}}}}'"#
        );
        let credential = run(&text).expect("credentials");
        assert!(credential.token.is_none() && credential.expires.is_none());
        assert_eq!(credential.identity.expect("one").key, Pem::Data(b"k".to_vec()));
    }

    #[test]
    fn a_program_learns_of_the_request() {
        let script = format!(
            r#"test "$(printf %s "$KUBERNETES_EXEC_INFO" | tr -d ' ')" = \
            '{{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential","spec":{{"interactive":false,"cluster":{{"server":"https://h","certificate-authority-data":"Y2E="}}}}}}' \
            && echo '{{{HEAD}, "status": {{"token": "t"}}}}'"#
        );
        assert!(run(&script).is_ok());
    }

    fn cluster_info(cluster: &Value) -> Result<Value, String> {
        let program = CredentialProgram::from_user(&user("true"), cluster).expect("valid");
        let info = program.expect("a program").info(false).map_err(|error| error.to_string())?;
        Ok(info["spec"]["cluster"].clone())
    }

    #[test]
    fn a_program_learns_the_authorities_of_a_file_and_its_own_part_of_the_configuration() {
        let directory = tempfile::tempdir().expect("directory");
        let path = directory.path().join("ca.crt");
        std::fs::write(&path, "ca").expect("file");
        let extensions = json!([{"name": "other", "extension": 1},
            {"name": "client.authentication.k8s.io/exec", "extension": {"audience": "a"}}]);
        let mut cluster =
            json!({"server": "s", "certificate-authority": path, "extensions": extensions});
        let wanted = json!({"server": "s", "certificate-authority-data": "Y2E=", "config": {"audience": "a"}});
        assert_eq!(cluster_info(&cluster), Ok(wanted));
        cluster["insecure-skip-tls-verify"] = json!(true);
        let info = cluster_info(&cluster).expect("valid");
        assert_eq!(info.get("certificate-authority-data"), None, "the server is not verified");
        let missing = json!({"certificate-authority": directory.path().join("none")});
        assert!(cluster_info(&missing).expect_err("no file").contains("cannot read"));
    }

    #[test]
    fn only_a_program_that_no_person_attends_has_a_limit() {
        let script = format!(r#"sleep 0.3; echo '{{{HEAD}, "status": {{"token": "t"}}}}'"#);
        let program = CredentialProgram::from_user(&user(&script), &json!({})).expect("valid");
        let mut program = program.expect("a program");
        program.patience = Duration::from_millis(1);
        assert!(program.run_at(false, true).is_ok());
        let error = program.run_at(false, false).err().expect("too slow").to_string();
        assert!(error.contains("there is no terminal to log in at"), "{error}");
    }

    #[test]
    fn what_is_wrong_with_a_program_is_said() {
        for (script, why) in [
            ("exit 3", "it failed with exit status: 3\n\ninstall it"),
            ("echo text", "its output is not valid JSON"),
            ("head -c 1100000 /dev/zero", "it printed more than 1048576 bytes"),
            (r#"echo '{"kind": "Pod"}'"#, "it printed Pod of "),
        ] {
            let error = run(script).err().expect(script);
            assert!(error.contains(why), "{script}: {error}");
        }
        for script in ["sleep 60", "exec >&-; sleep 60"] {
            let error = run_within(Duration::from_millis(500), script).err().expect(script);
            assert!(error.contains("it did not end in 0 seconds"), "{script}: {error}");
        }
        for (status, why) in [
            ("{}", "neither a token nor a certificate"),
            (r#"{"clientKeyData": "k"}"#, "a key alone"),
            (r#"{"token": "t", "expirationTimestamp": "soon"}"#, "\"soon\" is no time"),
        ] {
            let error = run(&format!("echo '{{{HEAD}, \"status\": {status}}}'")).err();
            assert!(error.as_ref().is_some_and(|error| error.contains(why)), "{status}: {error:?}");
        }
    }

    #[test]
    fn other_credentials_count_first_and_wrong_configurations_are_refused() {
        let of = |user: &Value| {
            let program = CredentialProgram::from_user(user, &json!({}));
            program.map(|program| program.is_some()).map_err(|error| error.to_string())
        };
        let mut with_token = user("true");
        with_token["token"] = json!("t");
        assert_eq!(of(&with_token), Ok(false));
        assert_eq!(of(&json!({})), Ok(false));
        for (field, value, why) in [
            ("command", json!(""), "names no command"),
            ("apiVersion", json!("client.authentication.k8s.io/v1alpha1"), "is not one of client."),
            ("interactiveMode", json!("Sometimes"), "interactiveMode \"Sometimes\" is not one of"),
            ("interactiveMode", Value::Null, "interactiveMode \"\" is not one of"),
        ] {
            let mut wrong = user("true");
            wrong["exec"][field] = value;
            let error = of(&wrong).expect_err(field);
            assert!(error.contains(why), "{error}");
        }
    }
}
