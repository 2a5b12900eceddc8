//! The kinds of pods that come and go. Each container writes a line into `/w/<container>.starts` when it starts.

use std::path::Path;

use crate::pods::WAIT;

/// What a pod is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// One container.
    Plain,
    /// Probes of all three kinds.
    Probed,
    /// A config map, a secret, fields of the pod and a token, read again and again.
    Reads,
    /// An init container and a sidecar before its container.
    Ordered,
    /// Two containers, with hooks and a volume in memory.
    Hooked,
    /// A container that ends.
    Ends,
    /// A volume of a driver.
    Claims,
    /// A container that fails at once.
    Crashes,
}

/// What is to be expected of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    Runs,
    /// Runs on and shows a config map.
    Reads,
    /// Ends and stays ended.
    Ends,
    /// Is restarted for its own sake.
    Crashes,
}

impl Kind {
    /// Kinds that come and go.
    pub const PASSING: [Kind; 6] =
        [Kind::Plain, Kind::Probed, Kind::Reads, Kind::Ordered, Kind::Hooked, Kind::Ends];
    /// Kinds that are there all the time.
    pub const STAYING: [Kind; 8] = [
        Kind::Plain,
        Kind::Probed,
        Kind::Reads,
        Kind::Ordered,
        Kind::Hooked,
        Kind::Ends,
        Kind::Claims,
        Kind::Crashes,
    ];

    /// What is to be expected of it.
    pub fn role(self) -> Role {
        match self {
            Kind::Reads => Role::Reads,
            Kind::Ends => Role::Ends,
            Kind::Crashes => Role::Crashes,
            _ => Role::Runs,
        }
    }

    /// The manifest; `account` is the directory of the node in which the containers write.
    pub fn manifest(self, namespace: &str, name: &str, account: &Path) -> String {
        let parts = self.parts();
        let policy = if self == Kind::Ends { "Never" } else { "Always" };
        let token = self == Kind::Reads;
        let (containers, init, volumes) = (parts.containers, parts.init, parts.volumes);
        format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, namespace: {namespace}, labels: {{turn: one}}}}\n\
             spec:\n  terminationGracePeriodSeconds: 1\n  restartPolicy: {policy}\n  \
             automountServiceAccountToken: {token}\n{init}  containers:\n{containers}  volumes:\n  \
             - {{name: w, hostPath: {{path: {}}}}}\n{volumes}",
            account.display()
        )
    }

    fn parts(self) -> Parts {
        let one = |script: &str, fields: &str| Parts {
            containers: container("main", script, fields),
            ..Parts::default()
        };
        match self {
            Kind::Plain => one(WAIT, ""),
            Kind::Ends => one("exit 0", ""),
            Kind::Crashes => one("exit 3", ""),
            Kind::Probed => one(
                "echo ok > /ok; httpd -f -p 8080 -h / & trap 'exit 0' TERM; while true; do wait; done",
                "    startupProbe: {tcpSocket: {port: 8080}, periodSeconds: 1, failureThreshold: 60}\n    \
                 readinessProbe: {httpGet: {path: /ok, port: 8080}, periodSeconds: 1, failureThreshold: 5}\n    \
                 livenessProbe: {exec: {command: [/bin/cat, /ok]}, periodSeconds: 2, timeoutSeconds: 10, failureThreshold: 5}\n",
            ),
            Kind::Reads => Parts {
                volumes: READS.to_owned(),
                containers: container(
                    "main",
                    "trap 'exit 0' TERM; while true; do \
                     for f in /cfg/key /cfg/secret /cfg/turn; do cat $f >/dev/null || echo $f >> /w/misses; done; sleep 0.2; done",
                    "    volumeMounts: [{name: w, mountPath: /w}, {name: cfg, mountPath: /cfg}]\n",
                ),
                ..Parts::default()
            },
            Kind::Ordered => Parts {
                init: format!(
                    "  initContainers:\n{}{}",
                    container("init", "true", ""),
                    container("side", WAIT, "    restartPolicy: Always\n")
                ),
                ..one(WAIT, "")
            },
            Kind::Hooked => Parts {
                containers: container(
                    "main",
                    WAIT,
                    "    lifecycle: {postStart: {exec: {command: [/bin/true]}}, preStop: {exec: {command: [/bin/true]}}}\n",
                ) + &container(
                    "beside",
                    WAIT,
                    "    volumeMounts: [{name: w, mountPath: /w}, {name: m, mountPath: /m}]\n",
                ),
                volumes: "  - {name: m, emptyDir: {medium: Memory}}\n".to_owned(),
                ..Parts::default()
            },
            Kind::Claims => Parts {
                containers: container(
                    "main",
                    WAIT,
                    "    volumeMounts: [{name: w, mountPath: /w}, {name: v, mountPath: /v}]\n",
                ),
                volumes: "  - {name: v, persistentVolumeClaim: {claimName: data}}\n".to_owned(),
                ..Parts::default()
            },
        }
    }
}

#[derive(Default)]
struct Parts {
    init: String,
    containers: String,
    volumes: String,
}

const READS: &str = "  - name: cfg\n    projected:\n      sources:\n      - {configMap: {name: settings}}\n      \
                     - {secret: {name: hidden}}\n      \
                     - {downwardAPI: {items: [{path: turn, fieldRef: {fieldPath: \"metadata.labels['turn']\"}}]}}\n";

fn container(name: &str, script: &str, fields: &str) -> String {
    let mounts = match fields.contains("volumeMounts") {
        true => "",
        false => "    volumeMounts: [{name: w, mountPath: /w}]\n",
    };
    let script = format!("echo start >> /w/{name}.starts; {script}");
    format!(
        "  - name: {name}\n    image: orch.local/demo:1\n    command: [/bin/sh, -c, {script:?}]\n{mounts}{fields}"
    )
}

/// What the pods refer to.
pub fn objects(namespace: &str) -> String {
    format!(
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: settings, namespace: {namespace}}}\ndata: {{key: \"0\"}}\n---\n\
         apiVersion: v1\nkind: Secret\nmetadata: {{name: hidden, namespace: {namespace}}}\nstringData: {{secret: s}}\n"
    )
}
