//! Which logs are meant: containers of a pod, of pods with labels, or of a pod of a workload.

use std::time::{Duration, Instant};

use orchctl_client::{CommandError, Output, Session, names};
use orchctl_printers::objects;
use proto_api::names::Names;
use proto_api::{Collection, duration};
use proto_client::{ListParams, request};
use serde_json::Value;

use super::Args;

/// Between two looks for a pod of a workload.
const LOOK_AGAIN: Duration = Duration::from_millis(500);

/// The log of one container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Source {
    pub(super) pods: Collection,
    pub(super) pod: String,
    pub(super) container: String,
}

/// Finds the logs.
pub(super) async fn find(
    session: &Session,
    args: &Args,
    output: &mut Output,
) -> Result<Vec<Source>, CommandError> {
    let namespace = session.namespace()?.to_owned();
    let collection = Collection {
        group: String::new(),
        version: "v1".to_owned(),
        plural: "pods".to_owned(),
        namespace: Some(namespace),
    };
    let pods = match (&args.selector, args.args.as_slice()) {
        (Some(selector), []) => list(session, &collection, selector).await?,
        (None, [name] | [name, _]) => vec![choose(session, &collection, name, args, output).await?],
        (None, []) => {
            return Err(CommandError::with_text(
                "expected 'logs [-f] [-p] (POD | TYPE/NAME) [-c CONTAINER]'",
            ));
        }
        (Some(_), _) => {
            return Err(CommandError::with_text("only a selector (-l) or a POD name is allowed"));
        }
        _ => return Err(CommandError::with_text("one POD and at most one CONTAINER are named")),
    };
    if pods.is_empty() {
        let namespace = session.namespace()?;
        writeln!(output.err, "No resources found in {namespace} namespace.")?;
    }
    let positional = args.args.get(1);
    if positional.is_some() && args.container.is_some() {
        return Err(CommandError::with_text(
            "only one of -c or an inline [CONTAINER] arg is allowed",
        ));
    }
    let wanted = args.container.as_ref().or(positional).map(String::as_str);
    if let (Some(name), true) = (wanted, args.all_containers) {
        return Err(CommandError::with_text(format!(
            "--all-containers=true should not be specified with container name {name}"
        )));
    }
    let labels = session.names().await?;
    let mut sources = Vec::new();
    for pod in &pods {
        for container in containers(labels, pod, wanted, args.all_containers, output)? {
            let pod = objects::name(pod).to_owned();
            sources.push(Source { pods: collection.clone(), pod, container });
        }
    }
    Ok(sources)
}

async fn list(
    session: &Session,
    pods: &Collection,
    selector: &str,
) -> Result<Vec<Value>, CommandError> {
    let params = ListParams::labels(selector);
    let list = session.call_json(request::list(pods.path(), &params)).await?;
    Ok(objects::into_items(list))
}

/// The pod of this name, or one of a workload.
async fn choose(
    session: &Session,
    pods: &Collection,
    name: &str,
    args: &Args,
    output: &mut Output,
) -> Result<Value, CommandError> {
    if !name.contains('/') {
        return session.call_json(request::get(pods.item(name, None))).await;
    }
    let selection = names::parse_pair(session.discovery().await?, name)?;
    let own = selection.name.as_deref().unwrap_or_default();
    let path = selection.resource.collection(pods.namespace.as_deref()).item(own, None);
    let object = session.call_json(request::get(path)).await?;
    if selection.resource.kind == "Pod" {
        return Ok(object);
    }
    let Some(selector) = objects::pod_selector(&object) else {
        return Err(CommandError::with_text(format!(
            "cannot get the logs from {name}: it selects no pods"
        )));
    };
    let limit = duration::parse(&args.pod_running_timeout)
        .map_err(|error| CommandError::with_text(format!("--pod-running-timeout: {error}")))?;
    let begun = Instant::now();
    let mut found = list(session, pods, &selector).await?;
    while found.is_empty() && begun.elapsed() < limit {
        tokio::time::sleep(LOOK_AGAIN).await;
        found = list(session, pods, &selector).await?;
    }
    found.sort_by_key(rank);
    let count = found.len();
    let Some(first) = found.into_iter().next() else {
        return Err(CommandError::with_text(format!("no pods of {name} found")));
    };
    if count > 1 {
        writeln!(output.err, "Found {count} pods, using pod/{}", objects::name(&first))?;
    }
    Ok(first)
}

/// Pods that run come first, of these the ready ones.
fn rank(pod: &Value) -> u8 {
    let is_ready = |one: &Value| {
        objects::text_at(one, "/type") == "Ready" && objects::text_at(one, "/status") == "True"
    };
    if objects::list_at(pod, "/status/conditions").iter().any(is_ready) {
        0
    } else if objects::text_at(pod, "/status/phase") == "Running" {
        1
    } else {
        2
    }
}

/// The containers of a pod: the named one, all, the one of the annotation, or the first.
fn containers(
    names: &Names,
    pod: &Value,
    wanted: Option<&str>,
    all: bool,
    output: &mut Output,
) -> Result<Vec<String>, CommandError> {
    let list = |field: &str| -> Vec<String> {
        let items = objects::list_at(pod, &format!("/spec/{field}")).iter();
        items.map(|one| objects::text_at(one, "/name").to_owned()).collect()
    };
    let (main, init, ephemeral) =
        (list("containers"), list("initContainers"), list("ephemeralContainers"));
    let every: Vec<&String> = main.iter().chain(&init).chain(&ephemeral).collect();
    let name = objects::name(pod);
    if let Some(wanted) = wanted {
        if !every.iter().any(|one| *one == wanted) {
            return Err(CommandError::with_text(format!(
                "container {wanted} is not valid for pod {name}"
            )));
        }
        return Ok(vec![wanted.to_owned()]);
    }
    if all {
        return Ok(init.iter().chain(&main).chain(&ephemeral).cloned().collect());
    }
    let annotation = names.sub_label("kubectl", "default-container");
    let annotated = objects::map_at(pod, "/metadata/annotations")
        .and_then(|map| map.get(&annotation)?.as_str())
        .filter(|chosen| every.iter().any(|one| one == chosen));
    if let Some(chosen) = annotated {
        return Ok(vec![chosen.to_owned()]);
    }
    let Some(first) = main.first() else {
        return Err(CommandError::with_text(format!("pod {name} has no containers")));
    };
    if every.len() > 1 {
        let shown = main.iter().cloned();
        let shown = shown.chain(ephemeral.iter().map(|one| format!("{one} (ephem)")));
        let shown: Vec<String> =
            shown.chain(init.iter().map(|one| format!("{one} (init)"))).collect();
        writeln!(output.err, "Defaulted container \"{first}\" out of: {}", shown.join(", "))?;
    }
    Ok(vec![first.clone()])
}

#[cfg(test)]
mod tests {
    use std::io;

    use proto_api::names::Profile;
    use serde_json::json;

    use super::*;

    #[test]
    fn containers_are_named_all_annotated_or_the_first() {
        let names = Names::new(Profile::Kubernetes);
        let mut output = Output {
            out: Box::new(io::sink()),
            err: Box::new(io::sink()),
            input: Box::new(io::empty()),
            colours: false,
        };
        let mut pod = json!({"metadata": {"name": "p"}, "spec": {
            "containers": [{"name": "a"}, {"name": "b"}], "initContainers": [{"name": "i"}]}});
        let mut ask = |pod: &Value, wanted, all| containers(names, pod, wanted, all, &mut output);
        assert_eq!(ask(&pod, None, false).expect("first"), ["a"]);
        assert_eq!(ask(&pod, None, true).expect("all"), ["i", "a", "b"]);
        assert_eq!(ask(&pod, Some("i"), false).expect("named"), ["i"]);
        let error = ask(&pod, Some("x"), false).expect_err("missing");
        assert_eq!(error.to_string(), "error: container x is not valid for pod p");
        pod["metadata"]["annotations"] =
            json!({names.sub_label("kubectl", "default-container"): "b"});
        assert_eq!(ask(&pod, None, false).expect("annotated"), ["b"]);
    }
}
