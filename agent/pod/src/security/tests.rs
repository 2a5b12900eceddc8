use proto_api::core::v1::Capabilities;
use proto_api::names::Names;

use super::*;

fn node() -> NodeFacts {
    NodeFacts { seccomp_dir: "/root/seccomp".into(), ..NodeFacts::default() }
}

fn pod(of_pod: PodSecurityContext, own: SecurityContext) -> Pod {
    let mut pod = Pod::default();
    pod.metadata.name = "web".into();
    pod.metadata.namespace = "shop".into();
    pod.metadata.uid = "u-1".into();
    pod.spec.security_context = Some(of_pod);
    pod.spec.containers =
        vec![Container { name: "c".into(), security_context: Some(own), ..Container::default() }];
    pod
}

fn read(pod: &Pod, user: &ImageUser) -> Result<ContainerSecurity, TranslateError> {
    container_security(pod, &pod.spec.containers[0], &node(), user, Namespaces::default())
}

#[test]
fn the_security_context_of_a_container_overrides_that_of_its_pod() {
    let of_pod = PodSecurityContext {
        run_as_user: Some(1000),
        run_as_group: Some(1000),
        fs_group: Some(2000),
        supplemental_groups: vec![3000],
        ..PodSecurityContext::default()
    };
    let capabilities = Capabilities { add: vec!["NET_ADMIN".into()], drop: vec!["ALL".into()] };
    let own = SecurityContext {
        run_as_user: Some(0),
        allow_privilege_escalation: Some(false),
        capabilities: Some(capabilities),
        ..SecurityContext::default()
    };
    let got = read(&pod(of_pod, own), &ImageUser::default()).expect("security");
    assert_eq!((got.run_as_user, got.run_as_group), (Some(0), Some(1000)));
    assert_eq!(got.supplemental_groups, [2000, 3000]);
    assert!(got.no_new_privileges);
    assert_eq!(got.drop_capabilities, ["ALL"]);
    assert_eq!(got.masked_paths, None);
    assert_eq!(got.seccomp, Seccomp::Unconfined);
}

/// Root is rejected wherever `runAsNonRoot` forbids it, with the kubelet's messages.
#[test]
fn root_is_kept_out() {
    let image = |uid, name: &str| ImageUser { uid, name: name.into() };
    let cases = [
        (Some(0), image(Some(5), ""), Some("container's runAsUser breaks non-root policy")),
        (Some(7), image(Some(0), ""), None),
        (None, image(Some(5), ""), None),
        (None, image(Some(0), ""), Some("container has runAsNonRoot and image will run as root")),
        (None, image(None, ""), Some("container has runAsNonRoot and image will run as root")),
        (
            None,
            image(None, "www"),
            Some("container has runAsNonRoot and image has non-numeric user (www), cannot verify"),
        ),
    ];
    for (run_as_user, image, expect) in cases {
        let own = SecurityContext {
            run_as_user,
            run_as_non_root: Some(true),
            ..SecurityContext::default()
        };
        let told = read(&pod(PodSecurityContext::default(), own), &image).err();
        let told = told.map(|e| e.to_string());
        match expect {
            None => assert_eq!(told, None, "{run_as_user:?} {image:?}"),
            Some(start) => {
                let told = told.expect("refused");
                assert!(told.starts_with(start), "{told}");
                assert!(told.ends_with("(pod: \"web_shop(u-1)\", container: c)"), "{told}");
            }
        }
    }
    let of_pod = PodSecurityContext { run_as_non_root: Some(true), ..Default::default() };
    let own = SecurityContext { run_as_non_root: Some(false), ..Default::default() };
    assert!(read(&pod(of_pod, own), &ImageUser::default()).is_ok(), "the container overrides");
}

#[test]
fn a_group_alone_takes_the_images_user_along() {
    let of_pod = PodSecurityContext { run_as_group: Some(9), ..PodSecurityContext::default() };
    let pod = pod(of_pod, SecurityContext::default());
    assert!(needs_image_user(&pod, &pod.spec.containers[0]));
    let users = |image: &ImageUser| {
        let got = read(&pod, image).expect("security");
        (got.run_as_user, got.run_as_username, got.run_as_group)
    };
    assert_eq!(users(&ImageUser::default()), (Some(0), String::new(), Some(9)));
    let named = ImageUser { uid: None, name: "www".into() };
    assert_eq!(users(&named), (None, "www".into(), Some(9)));
    let numbered = ImageUser { uid: Some(33), name: String::new() };
    assert_eq!(users(&numbered), (Some(33), String::new(), Some(9)));
}

#[test]
fn a_local_seccomp_profile_needs_its_name() {
    let profile = |type_: &str, name: Option<&str>| SeccompProfile {
        type_: type_.into(),
        localhost_profile: name.map(str::to_owned),
    };
    let cases = [
        (profile("RuntimeDefault", None), Ok(Seccomp::RuntimeDefault)),
        (
            profile("Localhost", Some("p.json")),
            Ok(Seccomp::Localhost("/root/seccomp/p.json".into())),
        ),
        (profile("Localhost", Some("")), Err(TranslateError::NoSeccompProfile)),
        (profile("Localhost", None), Err(TranslateError::NoSeccompProfile)),
        (profile("Localhost", Some("../p")), Err(TranslateError::SeccompOutside("../p".into()))),
        (profile("", None), Err(TranslateError::UnknownSeccomp(String::new()))),
    ];
    for (profile, expect) in cases {
        let own = SecurityContext { seccomp_profile: Some(profile.clone()), ..Default::default() };
        let got = read(&pod(PodSecurityContext::default(), own), &ImageUser::default());
        assert_eq!(got.map(|s| s.seccomp), expect, "{profile:?}");
    }
}

#[test]
fn seccomp_annotations_stand_in_for_missing_fields() {
    let names = <&Names>::default();
    let mut annotated = pod(PodSecurityContext::default(), SecurityContext::default());
    annotated.metadata.annotations.insert(names.pod_seccomp_annotation(), "runtime/default".into());
    let seccomp = |pod: &Pod| read(pod, &ImageUser::default()).map(|s| s.seccomp);
    assert_eq!(seccomp(&annotated), Ok(Seccomp::RuntimeDefault));
    let own = names.container_seccomp_annotation("c");
    annotated.metadata.annotations.insert(own.clone(), "localhost/a.json".into());
    assert_eq!(seccomp(&annotated), Ok(Seccomp::Localhost("/root/seccomp/a.json".into())));
    annotated.metadata.annotations.insert(own, "nonsense".into());
    assert!(seccomp(&annotated).is_err());
}

#[test]
fn the_nodes_default_profile_fills_the_gap() {
    let pod = pod(PodSecurityContext::default(), SecurityContext::default());
    let node = NodeFacts { seccomp_default: true, ..node() };
    let user = ImageUser::default();
    let got =
        container_security(&pod, &pod.spec.containers[0], &node, &user, Namespaces::default());
    assert_eq!(got.map(|s| s.seccomp), Ok(Seccomp::RuntimeDefault));
}

#[test]
fn privilege_and_masks() {
    let own = SecurityContext { proc_mount: Some("Unmasked".into()), ..Default::default() };
    let got = read(&pod(PodSecurityContext::default(), own), &ImageUser::default());
    assert_eq!(got.map(|s| s.masked_paths), Ok(Some(Vec::new())));
    let own = SecurityContext {
        privileged: Some(true),
        seccomp_profile: Some(SeccompProfile {
            type_: "RuntimeDefault".into(),
            ..Default::default()
        }),
        ..Default::default()
    };
    let privileged = pod(PodSecurityContext::default(), own);
    let got = read(&privileged, &ImageUser::default()).expect("security");
    assert!(got.privileged && got.seccomp == Seccomp::Unconfined);
    assert!(sandbox_security(&privileged).privileged);
}
