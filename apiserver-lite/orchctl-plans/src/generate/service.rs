//! Services and Ingresses.

use proto_api::names::Names;
use serde_json::{Map, Value, json};

use super::cluster::number_or_text;
use super::{object, parse_pairs, set_labels};
use crate::ArgumentError;
use crate::keep::{items_at, text_at};

/// Reads `port` or `port:targetPort` of `--tcp`.
fn tcp_port(text: &str) -> Result<Value, ArgumentError> {
    let (port, target) = text.split_once(':').unwrap_or((text, text));
    let number: u16 = port.parse().ok().filter(|number| *number > 0).ok_or_else(|| {
        ArgumentError::new(format!("{port:?} is not a port number between 1 and 65535"))
    })?;
    let name = text.replace(':', "-");
    Ok(
        json!({"name": name, "protocol": "TCP", "port": number, "targetPort": number_or_text(target)}),
    )
}

/// What a Service of `create service` has besides its name and type.
#[derive(Clone, Copy, Debug, Default)]
pub struct ServiceFlags<'a> {
    /// Ports as `port` or `port:targetPort`.
    pub tcp: &'a [String],
    /// The address; empty for the server's choice, `None` for none.
    pub cluster_ip: &'a str,
    /// The port on nodes; 0 for the server's choice.
    pub node_port: u16,
    /// The name that the Service stands for.
    pub external_name: &'a str,
}

/// A Service of a type.
///
/// # Errors
/// When a port is none, or there is none where one is needed.
pub fn service(name: &str, kind: &str, flags: ServiceFlags) -> Result<Value, ArgumentError> {
    let mut ports: Vec<Value> =
        flags.tcp.iter().map(|text| tcp_port(text)).collect::<Result<_, _>>()?;
    if ports.is_empty() && kind != "ExternalName" && flags.cluster_ip != "None" {
        return Err(ArgumentError::new("at least one tcp port specifier must be provided"));
    }
    if let (true, Some(first)) = (flags.node_port > 0, ports.first_mut()) {
        first["nodePort"] = json!(flags.node_port);
    }
    let mut spec = Map::new();
    if !ports.is_empty() {
        spec.insert("ports".into(), Value::Array(ports));
    }
    spec.insert("selector".into(), json!({"app": name}));
    if !flags.cluster_ip.is_empty() {
        spec.insert("clusterIP".into(), json!(flags.cluster_ip));
    }
    spec.insert("type".into(), json!(kind));
    if kind == "ExternalName" {
        spec.insert("externalName".into(), json!(flags.external_name));
    }
    let mut object = object("Service", "v1", name);
    set_labels(&mut object, json!({"app": name}));
    object.insert("spec".into(), Value::Object(spec));
    object.insert("status".into(), json!({"loadBalancer": {}}));
    Ok(Value::Object(object))
}

/// Flags of `expose`; empty values are taken from the exposed object.
#[derive(Clone, Copy, Debug, Default)]
pub struct ExposeFlags<'a> {
    /// Name of the Service.
    pub name: &'a str,
    /// Ports, separated by commas.
    pub port: &'a str,
    /// Port or name of a port of the pods.
    pub target_port: &'a str,
    /// Protocol of all ports.
    pub protocol: &'a str,
    /// Type of the Service.
    pub kind: &'a str,
    /// Labels of the pods, as `a=b`.
    pub selector: &'a str,
    /// Labels of the Service, as `a=b`.
    pub labels: &'a str,
    /// Its address.
    pub cluster_ip: &'a str,
    /// An address from outside.
    pub external_ip: &'a str,
    /// `ClientIP` or `None`.
    pub session_affinity: &'a str,
}

/// The Service that exposes a workload, pod or Service.
///
/// # Errors
/// When the object has no labels by which pods are selected, or no port.
pub fn exposed(object_: &Value, flags: ExposeFlags) -> Result<Value, ArgumentError> {
    let kind = text_at(object_, "/kind");
    let selector = match flags.selector {
        "" => Value::Object(selector_of(object_)?),
        text => Value::Object(parse_pairs(text)?),
    };
    let labels = match flags.labels {
        "" => object_.pointer("/metadata/labels").cloned(),
        text => Some(Value::Object(parse_pairs(text)?)),
    };
    let own = ports_of(object_);
    let wanted: Vec<(u16, String)> = match flags.port {
        "" => own,
        text => text.split(',').map(|port| numbered(port, &own)).collect::<Result<_, _>>()?,
    };
    if wanted.is_empty() && flags.cluster_ip != "None" {
        return Err(ArgumentError::new(format!(
            "couldn't find port via --port flag or introspection of the {kind}"
        )));
    }
    let several = wanted.len() > 1;
    let port = |(at, (number, protocol)): (usize, &(u16, String))| {
        let mut port = Map::new();
        if several {
            port.insert("name".into(), json!(format!("port-{}", at.saturating_add(1))));
        }
        let protocol = if flags.protocol.is_empty() { protocol } else { flags.protocol };
        port.insert("protocol".into(), json!(protocol));
        port.insert("port".into(), json!(number));
        let target = match flags.target_port {
            "" => json!(number),
            text => number_or_text(text),
        };
        port.insert("targetPort".into(), target);
        Value::Object(port)
    };
    let mut spec = Map::new();
    if !wanted.is_empty() {
        spec.insert("ports".into(), wanted.iter().enumerate().map(port).collect());
    }
    spec.insert("selector".into(), selector);
    let texts = [("clusterIP", flags.cluster_ip), ("type", flags.kind)];
    for (field, text) in texts.into_iter().chain([("sessionAffinity", flags.session_affinity)]) {
        if !text.is_empty() {
            spec.insert(field.into(), json!(text));
        }
    }
    if !flags.external_ip.is_empty() {
        spec.insert("externalIPs".into(), json!([flags.external_ip]));
    }
    let name = if flags.name.is_empty() { text_at(object_, "/metadata/name") } else { flags.name };
    let mut service = object("Service", "v1", name);
    if let Some(labels) = labels {
        set_labels(&mut service, labels);
    }
    service.insert("spec".into(), Value::Object(spec));
    service.insert("status".into(), json!({"loadBalancer": {}}));
    Ok(Value::Object(service))
}

fn numbered(port: &str, own: &[(u16, String)]) -> Result<(u16, String), ArgumentError> {
    let number: u16 = port.trim().parse().map_err(|_| {
        ArgumentError::new(format!("{port:?} is not a port number between 1 and 65535"))
    })?;
    let protocol = own.iter().find(|(own, _)| *own == number).map(|(_, protocol)| protocol.clone());
    Ok((number, protocol.unwrap_or_else(|| "TCP".to_owned())))
}

/// The labels that select the pods of an object.
fn selector_of(object: &Value) -> Result<Map<String, Value>, ArgumentError> {
    let kind = text_at(object, "/kind");
    let expressions = items_at(object, "/spec/selector/matchExpressions");
    if !expressions.is_empty() {
        return Err(ArgumentError::new(
            "couldn't convert expressions of the selector to a map: use --selector",
        ));
    }
    let pointer = match kind {
        "Pod" => "/metadata/labels",
        "Service" | "ReplicationController" => "/spec/selector",
        _ => "/spec/selector/matchLabels",
    };
    let labels = object.pointer(pointer).and_then(Value::as_object).filter(|map| !map.is_empty());
    let missing = || {
        ArgumentError::new(format!(
            "couldn't retrieve selectors via --selector flag or introspection: the {kind} has no labels and cannot be exposed"
        ))
    };
    labels.cloned().ok_or_else(missing)
}

/// Ports with their protocols, of containers or of a Service.
fn ports_of(object: &Value) -> Vec<(u16, String)> {
    let protocol = |port: &Value| match text_at(port, "/protocol") {
        "" => "TCP".to_owned(),
        text => text.to_owned(),
    };
    let number = |port: &Value, field: &str| {
        port.get(field).and_then(Value::as_u64).and_then(|number| u16::try_from(number).ok())
    };
    if text_at(object, "/kind") == "Service" {
        let ports = items_at(object, "/spec/ports").iter();
        return ports.filter_map(|port| Some((number(port, "port")?, protocol(port)))).collect();
    }
    let containers = match text_at(object, "/kind") {
        "Pod" => items_at(object, "/spec/containers"),
        _ => items_at(object, "/spec/template/spec/containers"),
    };
    let ports = containers.iter().flat_map(|container| items_at(container, "/ports"));
    ports.filter_map(|port| Some((number(port, "containerPort")?, protocol(port)))).collect()
}

/// Flags of `create ingress`.
#[derive(Clone, Copy, Debug, Default)]
pub struct IngressFlags<'a> {
    /// Name of the class; empty for the default one.
    pub class: &'a str,
    /// Rules as `host/path=service:port[,tls[=secret]]`.
    pub rules: &'a [String],
    /// Backend of what no rule matches, as `service:port`; may be empty.
    pub default_backend: &'a str,
    /// Annotations as `key=value`.
    pub annotations: &'a [String],
}

/// An Ingress.
///
/// # Errors
/// When a rule has another form, or there is neither a rule nor a default backend.
pub fn ingress(names: &Names, name: &str, flags: IngressFlags) -> Result<Value, ArgumentError> {
    if flags.rules.is_empty() && flags.default_backend.is_empty() {
        return Err(ArgumentError::new(
            "not enough information provided: every ingress has to either specify a default-backend (which catches all traffic) or a list of rules (which catch specific paths)",
        ));
    }
    let mut object = object("Ingress", &names.api_version("networking", "v1"), name);
    if !flags.annotations.is_empty() {
        let mut annotations = Map::new();
        for text in flags.annotations {
            annotations.extend(parse_pairs(text)?);
        }
        if let Some(Value::Object(metadata)) = object.get_mut("metadata") {
            metadata.insert("annotations".into(), Value::Object(annotations));
        }
    }
    let mut spec = Map::new();
    if !flags.class.is_empty() {
        spec.insert("ingressClassName".into(), json!(flags.class));
    }
    if !flags.default_backend.is_empty() {
        spec.insert("defaultBackend".into(), backend(flags.default_backend)?);
    }
    let (mut certificates, mut rules): (Vec<Value>, Vec<Value>) = (Vec::new(), Vec::new());
    for text in flags.rules {
        add_rule(text, &mut certificates, &mut rules)?;
    }
    for (field, list) in [("tls", certificates), ("rules", rules)] {
        if !list.is_empty() {
            spec.insert(field.into(), Value::Array(list));
        }
    }
    object.insert("spec".into(), Value::Object(spec));
    object.insert("status".into(), json!({"loadBalancer": {}}));
    Ok(Value::Object(object))
}

fn add_rule(
    text: &str,
    certificates: &mut Vec<Value>,
    rules: &mut Vec<Value>,
) -> Result<(), ArgumentError> {
    let invalid = || {
        ArgumentError::new(format!(
            "rule {text} is invalid and should be in format host/path=svcname:svcport[,tls[=secret]]"
        ))
    };
    let (rule, tls) = match text.split_once(',') {
        Some((rule, tls)) => (rule, Some(tls)),
        None => (text, None),
    };
    let (place, service) = rule.split_once('=').ok_or_else(invalid)?;
    let (host, path) = place.split_once('/').ok_or_else(invalid)?;
    let path = format!("/{path}");
    let (path, path_type) = match path.strip_suffix('*') {
        Some(prefix) => (prefix, "Prefix"),
        None => (path.as_str(), "Exact"),
    };
    let path = json!({"path": path, "pathType": path_type, "backend": backend(service)?});
    let host_of = |rule: &Value| text_at(rule, "/host").to_owned();
    let known = rules.iter_mut().find(|rule| host_of(rule) == host);
    match known.and_then(|rule| rule.pointer_mut("/http/paths")?.as_array_mut()) {
        Some(paths) => paths.push(path),
        None => {
            let mut rule = Map::new();
            if !host.is_empty() {
                rule.insert("host".into(), json!(host));
            }
            rule.insert("http".into(), json!({"paths": [path]}));
            rules.push(Value::Object(rule));
        }
    }
    let Some(tls) = tls else { return Ok(()) };
    let secret = match tls.split_once('=') {
        None if tls == "tls" => "",
        Some(("tls", secret)) => secret,
        _ => return Err(invalid()),
    };
    let same = |have: &&mut Value| text_at(have, "/secretName") == secret;
    match certificates.iter_mut().find(same).and_then(|have| have.get_mut("hosts")?.as_array_mut())
    {
        Some(hosts) if hosts.iter().any(|have| have == host) => {}
        Some(hosts) => hosts.push(json!(host)),
        None => {
            let mut entry = Map::new();
            if !host.is_empty() {
                entry.insert("hosts".into(), json!([host]));
            }
            if !secret.is_empty() {
                entry.insert("secretName".into(), json!(secret));
            }
            certificates.push(Value::Object(entry));
        }
    }
    Ok(())
}

fn backend(text: &str) -> Result<Value, ArgumentError> {
    let pair =
        text.split_once(':').filter(|(service, port)| !service.is_empty() && !port.is_empty());
    let (service, port) = pair.ok_or_else(|| {
        ArgumentError::new(format!("backend {text:?} is not of the form service:port"))
    })?;
    let port = match port.parse::<u16>() {
        Ok(number) => json!({"number": number}),
        Err(_) => json!({"name": port}),
    };
    Ok(json!({"service": {"name": service, "port": port}}))
}

#[cfg(test)]
mod tests {
    use proto_api::names::Profile;

    use super::*;

    #[test]
    fn services_of_each_type() {
        let made = |kind: &str, tcp: &str, more: ServiceFlags| {
            let tcp: Vec<String> =
                tcp.split(' ').filter(|t| !t.is_empty()).map(str::to_owned).collect();
            service("s", kind, ServiceFlags { tcp: &tcp, ..more })
                .map(|made| made["spec"].to_string())
        };
        let none = ServiceFlags::default();
        let cases = [
            (
                made("ClusterIP", "80:8080", none),
                r#"{"ports":[{"name":"80-8080","protocol":"TCP","port":80,"targetPort":8080}],"selector":{"app":"s"},"type":"ClusterIP"}"#,
            ),
            (
                made("NodePort", "80", ServiceFlags { node_port: 30080, ..none }),
                r#"{"ports":[{"name":"80","protocol":"TCP","port":80,"targetPort":80,"nodePort":30080}],"selector":{"app":"s"},"type":"NodePort"}"#,
            ),
            (
                made("ExternalName", "", ServiceFlags { external_name: "x.y", ..none }),
                r#"{"selector":{"app":"s"},"type":"ExternalName","externalName":"x.y"}"#,
            ),
            (
                made("LoadBalancer", "80:http", none),
                r#"{"ports":[{"name":"80-http","protocol":"TCP","port":80,"targetPort":"http"}],"selector":{"app":"s"},"type":"LoadBalancer"}"#,
            ),
        ];
        for (found, expected) in cases {
            assert_eq!(found.as_deref(), Ok(expected));
        }
        assert!(made("ClusterIP", "", none).is_err());
        assert!(made("ClusterIP", "0", none).is_err());
        assert!(made("ClusterIP", "70000", none).is_err());
    }

    #[test]
    fn exposed_objects_give_labels_and_ports() {
        let pod = json!({"kind": "Pod", "metadata": {"name": "p", "labels": {"run": "p"}},
            "spec": {"containers": [{"ports": [{"containerPort": 53, "protocol": "UDP"}]}]}});
        let made = exposed(&pod, ExposeFlags::default()).expect("has a port");
        assert_eq!(
            made.to_string(),
            r#"{"kind":"Service","apiVersion":"v1","metadata":{"name":"p","creationTimestamp":null,"labels":{"run":"p"}},"spec":{"ports":[{"protocol":"UDP","port":53,"targetPort":53}],"selector":{"run":"p"}},"status":{"loadBalancer":{}}}"#
        );
        let deployment = json!({"kind": "Deployment", "metadata": {"name": "d"}, "spec": {"selector": {"matchLabels": {"app": "d"}}}});
        assert!(exposed(&deployment, ExposeFlags::default()).is_err(), "no port");
        let flags = ExposeFlags {
            port: "80,81",
            target_port: "http",
            kind: "NodePort",
            name: "n",
            ..ExposeFlags::default()
        };
        let made = exposed(&deployment, flags).expect("two ports");
        assert_eq!(
            made["spec"],
            json!({"ports": [{"name": "port-1", "protocol": "TCP", "port": 80, "targetPort": "http"},
                {"name": "port-2", "protocol": "TCP", "port": 81, "targetPort": "http"}],
                "selector": {"app": "d"}, "type": "NodePort"})
        );
        let bare = json!({"kind": "Pod", "metadata": {"name": "p"}});
        assert!(
            exposed(&bare, ExposeFlags { port: "80", ..ExposeFlags::default() }).is_err(),
            "no labels"
        );
    }

    #[test]
    fn ingresses_from_rules() {
        let names = Names::new(Profile::Kubernetes);
        let rules = [
            "foo.com/bar*=svc1:8080,tls=secret".to_owned(),
            "foo.com/x=svc2:http,tls=secret".to_owned(),
        ];
        let annotations = ["a=b".to_owned()];
        let flags = IngressFlags {
            class: "c",
            rules: &rules[..1],
            default_backend: "d:http",
            annotations: &annotations,
        };
        assert_eq!(
            ingress(names, "i", flags).expect("valid").to_string(),
            r#"{"kind":"Ingress","apiVersion":"networking.k8s.io/v1","metadata":{"name":"i","creationTimestamp":null,"annotations":{"a":"b"}},"spec":{"ingressClassName":"c","defaultBackend":{"service":{"name":"d","port":{"name":"http"}}},"tls":[{"hosts":["foo.com"],"secretName":"secret"}],"rules":[{"host":"foo.com","http":{"paths":[{"path":"/bar","pathType":"Prefix","backend":{"service":{"name":"svc1","port":{"number":8080}}}}]}}]},"status":{"loadBalancer":{}}}"#
        );
        let both = ingress(names, "i", IngressFlags { rules: &rules, ..IngressFlags::default() })
            .expect("valid");
        assert_eq!(items_at(&both, "/spec/rules/0/http/paths").len(), 2, "one host, two paths");
        assert_eq!(
            both.pointer("/spec/tls"),
            Some(&json!([{"hosts": ["foo.com"], "secretName": "secret"}]))
        );
        for wrong in ["foo", "foo/x", "foo/x=svc", "foo/x=svc:80,ssl"] {
            let rules = [wrong.to_owned()];
            assert!(
                ingress(names, "i", IngressFlags { rules: &rules, ..IngressFlags::default() })
                    .is_err(),
                "{wrong}"
            );
        }
        assert!(ingress(names, "i", IngressFlags::default()).is_err());
    }
}
