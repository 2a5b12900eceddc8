//! Pods, Deployments, Jobs and CronJobs.

use proto_api::names::Names;
use serde_json::{Map, Value, json};

use super::{object, set_labels};
use crate::ArgumentError;
use crate::keep::text_at;
use crate::pod_template::{Variable, parse_variable};

/// The name of a container that runs an image: the last part of its path, without tag and digest.
fn container_name(image: &str) -> String {
    let last = image.rsplit('/').next().unwrap_or_default();
    let name = last.split(['@', ':']).next().unwrap_or_default();
    let allowed = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' };
    let name: String = name.chars().map(allowed).collect();
    name.trim_matches('-').to_owned()
}

/// A Deployment of `replicas` pods with one container an image.
///
/// # Errors
/// Without an image, or with a command for several.
pub fn deployment(
    name: &str,
    images: &[String],
    replicas: i32,
    port: Option<u16>,
    command: &[String],
) -> Result<Value, ArgumentError> {
    if images.is_empty() {
        return Err(ArgumentError::new("required flag(s) \"image\" not set"));
    }
    if images.len() > 1 && !command.is_empty() {
        return Err(ArgumentError::new("cannot specify multiple --image options and command"));
    }
    if replicas < 0 {
        return Err(ArgumentError::new("--replicas must not be negative"));
    }
    let containers = images.iter().map(|image| {
        let mut container = Map::new();
        container.insert("name".into(), json!(container_name(image)));
        container.insert("image".into(), json!(image));
        if !command.is_empty() {
            container.insert("command".into(), json!(command));
        }
        if let Some(port) = port {
            container.insert("ports".into(), json!([{"containerPort": port}]));
        }
        container.insert("resources".into(), json!({}));
        Value::Object(container)
    });
    let containers: Value = containers.collect();
    let labels = json!({"app": name});
    let mut object = object("Deployment", "apps/v1", name);
    set_labels(&mut object, labels.clone());
    object.insert(
        "spec".into(),
        json!({"replicas": replicas, "selector": {"matchLabels": labels},
            "template": {"metadata": {"creationTimestamp": null, "labels": labels}, "spec": {"containers": containers}},
            "strategy": {}}),
    );
    object.insert("status".into(), json!({}));
    Ok(Value::Object(object))
}

/// The specification of a Job with one container.
fn job_spec(name: &str, image: &str, command: &[String], restart: &str) -> Value {
    let mut container = Map::new();
    container.insert("name".into(), json!(name));
    container.insert("image".into(), json!(image));
    if !command.is_empty() {
        container.insert("command".into(), json!(command));
    }
    container.insert("resources".into(), json!({}));
    json!({"template": {"metadata": {"creationTimestamp": null},
        "spec": {"containers": [container], "restartPolicy": restart}}})
}

/// The object that `create job` posts.
pub fn job(name: &str, image: &str, command: &[String]) -> Value {
    let mut object = object("Job", "batch/v1", name);
    object.insert("spec".into(), job_spec(name, image, command, "Never"));
    object.insert("status".into(), json!({}));
    Value::Object(object)
}

/// A Job as a CronJob would make it; an annotation says that a user did.
///
/// # Errors
/// When the object is no CronJob.
pub fn job_from(names: &Names, name: &str, cron_job: &Value) -> Result<Value, ArgumentError> {
    let kind = text_at(cron_job, "/kind");
    if kind != "CronJob" {
        return Err(ArgumentError::new(format!(
            "unknown object type {kind}: only jobs of a CronJob can be made"
        )));
    }
    let mut job = object("Job", text_at(cron_job, "/apiVersion"), name);
    let template = |field: &str| cron_job.pointer(&format!("/spec/jobTemplate/{field}")).cloned();
    let mut annotations = Map::new();
    annotations.insert(format!("cronjob.{}", names.label("instantiate")), json!("manual"));
    if let Some(Value::Object(own)) = template("metadata/annotations") {
        annotations.extend(own);
    }
    let (owner, uid) = (text_at(cron_job, "/metadata/name"), text_at(cron_job, "/metadata/uid"));
    if let Some(Value::Object(metadata)) = job.get_mut("metadata") {
        if let Some(labels) = template("metadata/labels") {
            metadata.insert("labels".into(), labels);
        }
        metadata.insert("annotations".into(), Value::Object(annotations));
        metadata.insert(
            "ownerReferences".into(),
            json!([{"apiVersion": text_at(cron_job, "/apiVersion"), "kind": kind, "name": owner, "uid": uid, "controller": true}]),
        );
    }
    job.insert("spec".into(), template("spec").unwrap_or_default());
    job.insert("status".into(), json!({}));
    Ok(Value::Object(job))
}

/// The object that `create cronjob` posts.
pub fn cron_job(
    name: &str,
    image: &str,
    schedule: &str,
    restart: &str,
    command: &[String],
) -> Value {
    let mut object = object("CronJob", "batch/v1", name);
    let spec = job_spec(name, image, command, restart);
    object.insert(
        "spec".into(),
        json!({"schedule": schedule, "jobTemplate": {"metadata": {"name": name, "creationTimestamp": null}, "spec": spec}}),
    );
    object.insert("status".into(), json!({}));
    Value::Object(object)
}

/// What `run` puts into the pod.
#[derive(Clone, Copy, Debug, Default)]
pub struct RunFlags<'a> {
    pub image: &'a str,
    /// When it is pulled; empty for the server's default.
    pub pull_policy: &'a str,
    /// `Always`, `OnFailure` or `Never`.
    pub restart: &'a str,
    /// Variables as `NAME=value`.
    pub env: &'a [String],
    /// A port of the container.
    pub port: Option<u16>,
    /// Labels as `a=b`; empty for `run=NAME`.
    pub labels: &'a str,
    /// Annotations as `a=b`.
    pub annotations: &'a [String],
    /// Arguments, or a command if `is_command`.
    pub arguments: &'a [String],
    /// Whether the arguments replace the image's command.
    pub is_command: bool,
    /// Whether the container has an input, and stops reading when the first reader has gone.
    pub stdin: bool,
    /// Whether the input stays open when the first reader has gone.
    pub leave_stdin_open: bool,
    /// Whether the container has a terminal.
    pub tty: bool,
    /// Whether it may do everything on its node.
    pub privileged: bool,
}

/// A Pod of one container.
///
/// # Errors
/// When a flag has another form.
pub fn pod(name: &str, flags: RunFlags) -> Result<Value, ArgumentError> {
    if !matches!(flags.restart, "Always" | "OnFailure" | "Never") {
        let restart = flags.restart;
        return Err(ArgumentError::new(format!(
            "invalid restart policy: {restart}: expected Always, OnFailure or Never"
        )));
    }
    let mut container = Map::new();
    container.insert("name".into(), json!(name));
    container.insert("image".into(), json!(flags.image));
    if !flags.arguments.is_empty() {
        let field = if flags.is_command { "command" } else { "args" };
        container.insert(field.into(), json!(flags.arguments));
    }
    if let Some(port) = flags.port {
        container.insert("ports".into(), json!([{"containerPort": port}]));
    }
    let mut env = Vec::new();
    for text in flags.env {
        match parse_variable(text)? {
            Variable::Set(entry) => env.push(entry),
            Variable::Remove(name) => {
                return Err(ArgumentError::new(format!(
                    "invalid env: {name}-, expected NAME=value"
                )));
            }
        }
    }
    if !env.is_empty() {
        container.insert("env".into(), Value::Array(env));
    }
    container.insert("resources".into(), json!({}));
    if !flags.pull_policy.is_empty() {
        container.insert("imagePullPolicy".into(), json!(flags.pull_policy));
    }
    if flags.privileged {
        container.insert("securityContext".into(), json!({"privileged": true}));
    }
    let streams = [
        ("stdin", flags.stdin),
        ("stdinOnce", flags.stdin && !flags.leave_stdin_open),
        ("tty", flags.tty),
    ];
    for (field, _) in streams.into_iter().filter(|(_, set)| *set) {
        container.insert(field.into(), json!(true));
    }
    let labels = match flags.labels {
        "" => json!({"run": name}),
        text => Value::Object(super::parse_pairs(text)?),
    };
    let mut object = object("Pod", "v1", name);
    set_labels(&mut object, labels);
    let mut annotations = Map::new();
    for text in flags.annotations {
        annotations.extend(super::parse_pairs(text)?);
    }
    if let (false, Some(Value::Object(metadata))) =
        (annotations.is_empty(), object.get_mut("metadata"))
    {
        metadata.insert("annotations".into(), Value::Object(annotations));
    }
    object.insert(
        "spec".into(),
        json!({"containers": [container], "restartPolicy": flags.restart, "dnsPolicy": "ClusterFirst"}),
    );
    object.insert("status".into(), json!({}));
    Ok(Value::Object(object))
}

#[cfg(test)]
mod tests {
    use proto_api::names::Profile;

    use super::*;

    fn words(text: &str) -> Vec<String> {
        text.split(' ').filter(|word| !word.is_empty()).map(str::to_owned).collect()
    }

    #[test]
    fn deployments_have_a_container_for_each_image() {
        let made = deployment("web", &words("nginx:1.25"), 3, Some(80), &[]).expect("valid");
        assert_eq!(
            made.to_string(),
            r#"{"kind":"Deployment","apiVersion":"apps/v1","metadata":{"name":"web","creationTimestamp":null,"labels":{"app":"web"}},"spec":{"replicas":3,"selector":{"matchLabels":{"app":"web"}},"template":{"metadata":{"creationTimestamp":null,"labels":{"app":"web"}},"spec":{"containers":[{"name":"nginx","image":"nginx:1.25","ports":[{"containerPort":80}],"resources":{}}]}},"strategy":{}},"status":{}}"#
        );
        assert!(deployment("web", &[], 1, None, &[]).is_err());
        assert!(deployment("web", &words("a b"), 1, None, &words("sleep 5")).is_err());
        assert!(deployment("web", &words("a"), -1, None, &[]).is_err());
    }

    #[test]
    fn containers_are_named_after_images() {
        for (image, name) in
            [("nginx", "nginx"), ("registry:5000/a/My_App:1.2", "my-app"), ("a/b@sha256:00", "b")]
        {
            assert_eq!(container_name(image), name);
        }
    }

    #[test]
    fn jobs_run_once_or_on_schedule() {
        let names = Names::new(Profile::Kubernetes);
        let made = job("j", "busybox", &words("date"));
        assert_eq!(
            made["spec"].to_string(),
            r#"{"template":{"metadata":{"creationTimestamp":null},"spec":{"containers":[{"name":"j","image":"busybox","command":["date"],"resources":{}}],"restartPolicy":"Never"}}}"#
        );
        let mut cron = cron_job("c", "busybox", "*/1 * * * *", "OnFailure", &words("date"));
        assert_eq!(
            cron.pointer("/spec/jobTemplate/spec/template/spec/restartPolicy"),
            Some(&json!("OnFailure"))
        );
        cron["metadata"]["uid"] = json!("u");
        let manual = job_from(names, "m", &cron).expect("a cron job");
        assert_eq!(manual["spec"], cron["spec"]["jobTemplate"]["spec"]);
        assert_eq!(
            manual.pointer("/metadata/annotations"),
            Some(&json!({"cronjob.kubernetes.io/instantiate": "manual"}))
        );
        assert_eq!(manual.pointer("/metadata/ownerReferences/0/uid"), Some(&json!("u")));
        assert!(job_from(names, "m", &made).is_err());
    }

    #[test]
    fn pods_of_run() {
        let (env, arguments) = (words("A=B"), words("a b"));
        let flags = RunFlags { image: "nginx", restart: "Always", ..RunFlags::default() };
        assert_eq!(
            pod("p", flags).expect("valid").to_string(),
            r#"{"kind":"Pod","apiVersion":"v1","metadata":{"name":"p","creationTimestamp":null,"labels":{"run":"p"}},"spec":{"containers":[{"name":"p","image":"nginx","resources":{}}],"restartPolicy":"Always","dnsPolicy":"ClusterFirst"},"status":{}}"#
        );
        let more = RunFlags {
            restart: "Never",
            env: &env,
            port: Some(80),
            labels: "x=y",
            arguments: &arguments,
            stdin: true,
            tty: true,
            ..flags
        };
        let made = pod("p", more).expect("valid");
        assert_eq!(
            made.pointer("/spec/containers/0"),
            Some(
                &json!({"name": "p", "image": "nginx", "args": ["a", "b"], "ports": [{"containerPort": 80}],
                "env": [{"name": "A", "value": "B"}], "resources": {}, "stdin": true, "stdinOnce": true, "tty": true})
            )
        );
        assert_eq!(made.pointer("/metadata/labels"), Some(&json!({"x": "y"})));
        let command = pod("p", RunFlags { is_command: true, ..more }).expect("valid");
        assert_eq!(command.pointer("/spec/containers/0/command"), Some(&json!(["a", "b"])));
        assert!(pod("p", RunFlags { restart: "Sometimes", ..flags }).is_err());
    }
}
