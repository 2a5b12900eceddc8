//! What `hack/package` makes of built programs: packages that install, upgrade and go without a trace, manual pages and completions that work, an image
//! layout whose digests are right; and that the pages of reference say what the programs say.

#![expect(clippy::expect_used, reason = "helpers of tests: what is missing is a failed test")]

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

use tempfile::TempDir;

const PROGRAMS: [&str; 7] = [
    "orchlet",
    "orch-proxy",
    "orch-apiserver",
    "orch-controller-manager",
    "orch-scheduler",
    "orchadm",
    "orchctl",
];
const PACKAGES: [&str; 5] = ["orchlet", "orch-proxy", "apiserver-lite", "orchadm", "orchctl"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The directory of built programs; none if one is missing.
fn bin_dir() -> Option<PathBuf> {
    let of_build = Path::new(env!("CARGO_BIN_EXE_packaging")).parent().map(Path::to_owned);
    let dir = std::env::var_os("ORCH_BIN_DIR").map(PathBuf::from).or(of_build)?;
    let missing = PROGRAMS.into_iter().find(|program| !dir.join(program).exists());
    match missing {
        Some(program) => {
            println!("SKIPPED: {program} is not built in {}", dir.display());
            None
        }
        None => Some(dir),
    }
}

fn has(program: &str) -> bool {
    let found = Command::new("sh").args(["-c", &format!("command -v {program}")]).output();
    let is_there = found.is_ok_and(|found| found.status.success());
    if !is_there {
        println!("SKIPPED: {program} is not there");
    }
    is_there
}

fn run(command: &mut Command) -> Output {
    let output = command.output().expect("it starts");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {}; {said}", output.status);
    output
}

fn text(command: &mut Command) -> String {
    String::from_utf8(run(command).stdout).expect("text")
}

/// Makes packages and images of the built programs, which takes as little time as it can.
fn make(bin_dir: &Path) -> TempDir {
    let out = tempfile::tempdir().expect("a directory");
    run(Command::new(root().join("hack/package"))
        .args(["--out".as_ref(), out.path().as_os_str()])
        .env("ORCH_BIN_DIR", bin_dir)
        .env("DPKG_DEB_COMPRESSOR_TYPE", "gzip")
        .env("DPKG_DEB_COMPRESSOR_LEVEL", "1"));
    out
}

/// What was made, once for all tests.
fn made() -> Option<&'static Path> {
    static MADE: OnceLock<Option<TempDir>> = OnceLock::new();
    if !["dpkg-deb", "jq", "strip"].into_iter().all(has) {
        return None;
    }
    let made = MADE.get_or_init(|| bin_dir().map(|dir| make(&dir)));
    made.as_ref().map(TempDir::path)
}

fn deb(of: &Path, package: &str) -> PathBuf {
    let found = fs::read_dir(of).expect("packages").flatten().map(|entry| entry.path());
    let is_it = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        name.starts_with(&format!("{package}_")) && name.ends_with(".deb")
    };
    found.into_iter().find(is_it).expect(package)
}

fn unpacked(of: &Path, package: &str) -> TempDir {
    let dir = tempfile::tempdir().expect("a directory");
    let raw = ["--raw-extract".as_ref(), deb(of, package).as_os_str(), dir.path().as_os_str()]
        .map(std::ffi::OsStr::to_owned);
    run(Command::new("dpkg-deb").args(raw));
    dir
}

/// Files below a directory, by their paths in it.
fn files(dir: &Path) -> Vec<String> {
    let found = text(Command::new("find").arg(dir).args(["-type", "f", "-printf", "%P\\n"]));
    let mut all: Vec<String> = found.lines().map(str::to_owned).collect();
    all.sort();
    all
}

#[test]
fn the_pages_of_reference_are_what_the_programs_say() {
    let Some(dir) = bin_dir() else { return };
    run(Command::new(env!("CARGO_BIN_EXE_packaging"))
        .args(["--bin-dir".as_ref(), dir.as_os_str(), "pages".as_ref()])
        .arg(root())
        .arg("--check"));
}

#[test]
fn two_builds_are_equal() {
    let Some(first) = made() else { return };
    let Some(dir) = bin_dir() else { return };
    let second = make(&dir);
    let names = files(first);
    assert_eq!(names, files(second.path()));
    assert!(names.len() > 5 + 7 * 3, "{names:?}");
    for name in names {
        let read = |dir: &Path| fs::read(dir.join(&name)).expect("a file");
        assert!(read(first) == read(second.path()), "{name} differs");
    }
}

#[test]
fn packages_hold_what_they_say_where_it_belongs() {
    let Some(made) = made() else { return };
    let mut programs = Vec::new();
    for package in PACKAGES {
        let listed = text(Command::new("dpkg-deb").arg("--contents").arg(deb(made, package)));
        for line in listed.lines() {
            let owned = line.split_whitespace().nth(1) == Some("root/root");
            let mode = line.starts_with("-rw-r--r--")
                || line.starts_with("drwxr-xr-x")
                || (line.starts_with("-rwxr-xr-x") && line.contains(" ./usr/bin/"));
            assert!(owned && mode, "{package}: {line}");
        }
        let dir = unpacked(made, package);
        let mut summed = Vec::new();
        let sums = fs::read_to_string(dir.path().join("DEBIAN/md5sums")).expect("sums");
        for line in sums.lines() {
            let (sum, path) = line.split_once("  ").expect("a sum and a path");
            let found = text(Command::new("md5sum").arg(dir.path().join(path)));
            assert!(found.starts_with(sum), "{package}: {path}");
            summed.push(path.to_owned());
        }
        let conffiles = fs::read_to_string(dir.path().join("DEBIAN/conffiles")).unwrap_or_default();
        let conffiles: Vec<&str> = conffiles.lines().collect();
        for path in files(dir.path()) {
            let absolute = format!("/{path}");
            let known = path.starts_with("DEBIAN/")
                || summed.contains(&path)
                || conffiles.contains(&absolute.as_str());
            assert!(known, "{package}: {path} is neither summed nor a conffile");
            let places =
                ["DEBIAN/", "usr/bin/", "usr/share/", "lib/systemd/system/", "etc/default/"];
            assert!(places.iter().any(|place| path.starts_with(place)), "{package}: {path}");
            if let Some(program) = path.strip_prefix("usr/bin/") {
                programs.push(program.to_owned());
                let asks: &[&str] = match program {
                    "orchctl" => &["version", "--client"],
                    _ => &["--version"],
                };
                let printed = text(Command::new(dir.path().join(&path)).args(asks));
                assert!(printed.contains(env!("CARGO_PKG_VERSION")), "{program}: {printed}");
            }
        }
        let documents = dir.path().join("usr/share/doc").join(package);
        for name in ["copyright", "changelog.gz", "CHANGELOG.md.gz"] {
            assert!(documents.join(name).exists());
        }
        let notices = text(Command::new("zcat").arg(documents.join("third-party-notices.gz")));
        for linked in ["\ntokio 1.", "\nserde 1.", "Permission is hereby granted", "Apache License"]
        {
            assert!(notices.contains(linked), "{package}: {linked:?} is not in the notices");
        }
    }
    programs.sort();
    let mut expected = PROGRAMS.map(str::to_owned);
    expected.sort();
    assert_eq!(programs, expected);
}

/// The newest version of glibc that a program asks for; none of one that is linked statically.
fn glibc_of(program: &Path) -> Option<Vec<u32>> {
    let symbols = text(Command::new("objdump").arg("-T").arg(program));
    let versions = symbols.split("GLIBC_").skip(1).filter_map(|rest| {
        let version = rest.split(|c: char| !c.is_ascii_digit() && c != '.').next()?;
        version.split('.').map(|part| part.parse().ok()).collect()
    });
    versions.max()
}

#[test]
fn packages_depend_on_the_glibc_that_their_programs_need() {
    let Some(made) = made() else { return };
    if !has("objdump") {
        return;
    }
    for package in PACKAGES {
        let depends =
            text(Command::new("dpkg-deb").arg("-f").arg(deb(made, package)).arg("Depends"));
        let dir = unpacked(made, package);
        let programs = files(&dir.path().join("usr/bin"));
        let needed =
            programs.iter().filter_map(|of| glibc_of(&dir.path().join("usr/bin").join(of))).max();
        let declared = needed.as_ref().map(|version| {
            let parts: Vec<String> = version.iter().map(u32::to_string).collect();
            format!("libc6 (>= {})", parts.join("."))
        });
        match declared {
            Some(declared) => assert!(depends.contains(&declared), "{package}: {depends}"),
            None => assert_eq!(depends.trim(), "", "{package}"),
        }
        // The page of operations says that packages of Debian 12 run there.
        assert!(needed <= Some(vec![2, 36]), "{package} needs glibc {needed:?}");
    }
}

#[test]
fn lintian_finds_nothing_but_the_want_of_an_address() {
    let Some(made) = made() else { return };
    if !has("lintian") {
        return;
    }
    let debs = PACKAGES.map(|package| deb(made, package));
    run(Command::new("lintian")
        .args(["--allow-root", "--fail-on=error,warning"])
        .args(["--suppress-tags=bogus-mail-host,bogus-mail-host-in-debian-changelog"])
        .args(debs));
}

#[test]
fn scripts_do_nothing_in_another_root_and_may_be_repeated() {
    let Some(made) = made() else { return };
    let mut scripts = 0;
    for package in PACKAGES {
        let dir = unpacked(made, package);
        for (name, arguments) in [
            ("postinst", &["configure", ""][..]),
            ("postinst", &["configure", "0.0.1"]),
            ("prerm", &["remove"]),
            ("postrm", &["remove"]),
            ("postrm", &["purge"]),
        ] {
            let script = dir.path().join("DEBIAN").join(name);
            if !script.exists() {
                continue;
            }
            scripts += 1;
            let mode = fs::metadata(&script).expect("a script").permissions().mode();
            assert_eq!(mode & 0o7777, 0o755, "{package}: {name}");
            for _ in 0..2 {
                run(Command::new(&script).args(arguments).env("DPKG_ROOT", dir.path()));
            }
        }
    }
    assert_eq!(scripts, 15, "of three packages with services");
}

/// `dpkg` on a root of its own. What a package depends on is not there.
fn dpkg(root: &Path, arguments: &[&str]) -> String {
    text(
        Command::new("dpkg")
            .arg(format!("--root={}", root.display()))
            .args(["--force-script-chrootless", "--force-depends", "--log=/dev/null"])
            .args(arguments),
    )
}

#[test]
fn packages_install_upgrade_and_go() {
    let Some(made) = made() else { return };
    let uid = fs::metadata("/proc/self").expect("proc").uid();
    if uid != 0 || !has("dpkg") {
        println!("SKIPPED: dpkg installs as root");
        return;
    }
    let host = tempfile::tempdir().expect("a directory");
    let admin = host.path().join("var/lib/dpkg");
    for dir in ["info", "updates", "triggers"] {
        fs::create_dir_all(admin.join(dir)).expect("a directory");
    }
    for file in ["status", "available"] {
        fs::write(admin.join(file), "").expect("a file");
    }
    let debs = PACKAGES.map(|package| deb(made, package).to_string_lossy().into_owned());
    let debs: Vec<&str> = debs.iter().map(String::as_str).collect();
    // The second time is an upgrade, which keeps what the administrator wrote.
    let flags = host.path().join("etc/default/orchlet");
    for round in 0..2 {
        dpkg(host.path(), &[&["--install"], debs.as_slice()].concat());
        let status = text(
            Command::new("dpkg-query")
                .arg(format!("--admindir={}", admin.display()))
                .args(["-W", "-f=${Package} ${db:Status-Abbrev}\\n"]),
        );
        for package in PACKAGES {
            assert!(status.contains(&format!("{package} ii ")), "{status}");
        }
        if round == 0 {
            assert!(fs::read_to_string(&flags).expect("flags").ends_with("\nFLAGS=\"\"\n"));
            fs::write(&flags, "FLAGS=\"--v=2\"\n").expect("a file");
        }
    }
    assert_eq!(fs::read_to_string(&flags).expect("flags"), "FLAGS=\"--v=2\"\n");
    assert!(!host.path().join("etc/systemd").exists(), "no unit is enabled");
    dpkg(host.path(), &[&["--remove"], PACKAGES.as_slice()].concat());
    assert!(flags.exists() && !host.path().join("usr/bin/orchlet").exists());
    dpkg(host.path(), &[&["--purge"], PACKAGES.as_slice()].concat());
    let left: Vec<String> =
        files(host.path()).into_iter().filter(|path| !path.starts_with("var/lib/dpkg/")).collect();
    assert_eq!(left, Vec::<String>::new());
}

/// Bold letters are printed twice, one above the other.
fn without_overstrikes(text: &str) -> String {
    let mut plain = String::new();
    for letter in text.chars() {
        match letter {
            '\u{8}' => drop(plain.pop()),
            other => plain.push(other),
        }
    }
    plain
}

#[test]
fn manual_pages_render_without_warnings() {
    let Some(made) = made() else { return };
    if !has("man") {
        return;
    }
    let mut pages = 0;
    for package in PACKAGES {
        let dir = unpacked(made, package);
        for path in files(&dir.path().join("usr/share/man")) {
            let page = dir.path().join("usr/share/man").join(&path);
            let output = run(Command::new("man")
                .args(["--warnings", "-E", "UTF-8", "-l", "-Tutf8"])
                .arg(&page)
                .env("MANWIDTH", "80")
                .env("LC_ALL", "C.UTF-8"));
            let said = String::from_utf8_lossy(&output.stderr);
            // A flag that is longer than what is left of its line leaves it ragged, which is no fault of the page.
            let faults: Vec<&str> =
                said.lines().filter(|line| !line.contains("cannot adjust line")).collect();
            assert!(faults.is_empty(), "{path}: {faults:?}");
            let shown = without_overstrikes(&String::from_utf8_lossy(&output.stdout));
            assert!(shown.contains("NAME") && shown.contains("SYNOPSIS"), "{path}: {shown}");
            pages += 1;
        }
    }
    assert!(pages > 60, "{pages}");
}

#[test]
fn completions_load_and_complete() {
    let Some(made) = made() else { return };
    for (package, program, begun, expected) in [
        ("orchlet", "orchlet", "--kubec", "--kubeconfig"),
        ("apiserver-lite", "orch-apiserver", "--data-d", "--data-dir"),
        ("orchctl", "orchctl", "cord", "cordon"),
        ("orchadm", "orchadm", "upgr", "upgrade"),
    ] {
        let dir = unpacked(made, package);
        let share = dir.path().join("usr/share");
        let bash = share.join(format!("bash-completion/completions/{program}"));
        let script = format!(
            "set -e; . {0}; complete -p {1}; COMP_WORDS=({1} {2}); COMP_CWORD=1; _{1} {1} {2} {1}; printf '%s\\n' \"${{COMPREPLY[@]}}\"",
            bash.display(),
            program,
            begun,
        );
        let script =
            script.replace(&format!("_{program} "), &format!("_{} ", program.replace('-', "__")));
        // orchctl is asked, and knows names as well.
        let script = script.replace(" _orchctl orchctl", " _clap_complete_orchctl orchctl");
        let path = format!("{}:/usr/bin:/bin", dir.path().join("usr/bin").display());
        let mut bash = Command::new("bash");
        let shown = text(bash.args(["--norc", "-c", &script]).env("PATH", path));
        assert!(shown.lines().any(|line| line == expected), "{program}: {shown}");
        for (shell, path) in [
            ("zsh", format!("zsh/vendor-completions/_{program}")),
            ("fish", format!("fish/vendor_completions.d/{program}.fish")),
        ] {
            assert!(share.join(&path).exists(), "{path}");
            if has(shell) {
                run(Command::new(shell).arg("-n").arg(share.join(path)));
            }
        }
    }
}

#[test]
fn units_are_those_of_the_cluster_without_its_flags() {
    let Some(made) = made() else { return };
    let mut units = Vec::new();
    for package in PACKAGES {
        let dir = unpacked(made, package);
        for path in files(dir.path()).into_iter().filter(|path| path.ends_with(".service")) {
            let name = path.rsplit('/').next().unwrap_or_default();
            let program = name.trim_end_matches(".service").to_owned();
            let unit = fs::read_to_string(dir.path().join(&path)).expect("a unit");
            assert!(unit.contains(&format!("\nExecStart=/usr/bin/{program} $FLAGS\n")), "{unit}");
            assert!(dir.path().join("usr/bin").join(&program).exists());
            assert!(dir.path().join("etc/default").join(&program).exists());
            units.push(program);
        }
    }
    units.sort();
    let mut expected = PROGRAMS[..5].to_vec();
    expected.sort();
    assert_eq!(units, expected);
}

fn sha256(path: &Path) -> String {
    let summed = text(Command::new("sha256sum").arg(path));
    summed.split(' ').next().unwrap_or_default().to_owned()
}

fn json(path: &Path) -> serde_json::Value {
    serde_json::from_slice(&fs::read(path).expect("a file")).expect("JSON")
}

#[test]
fn the_image_layout_has_the_digests_of_its_content() {
    let Some(made) = made() else { return };
    let oci = made.join("oci");
    assert_eq!(json(&oci.join("oci-layout"))["imageLayoutVersion"], "1.0.0");
    let blob = |of: &serde_json::Value| {
        let digest = of["digest"].as_str().expect("a digest");
        let path = oci.join("blobs/sha256").join(digest.strip_prefix("sha256:").expect("sha256"));
        assert_eq!(format!("sha256:{}", sha256(&path)), digest);
        assert_eq!(of["size"].as_u64(), Some(fs::metadata(&path).expect("a blob").len()));
        path
    };
    let index = json(&oci.join("index.json"));
    let manifests = index["manifests"].as_array().expect("manifests");
    assert_eq!(manifests.len(), PROGRAMS.len());
    for (program, entry) in PROGRAMS.iter().zip(manifests) {
        let name = entry["annotations"]["io.containerd.image.name"].as_str().expect("a name");
        let is_valid = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
        let tag = name.strip_prefix(&format!("orch.local/{program}:")).expect("the program");
        assert!(tag.chars().all(is_valid) && !tag.is_empty(), "{name}");
        let manifest = json(&blob(entry));
        let config = json(&blob(&manifest["config"]));
        assert_eq!(config["config"]["Entrypoint"][0], format!("/usr/bin/{program}"));
        let layer = blob(&manifest["layers"][0]);
        let tar = tempfile::NamedTempFile::new().expect("a file");
        let unzipped = run(Command::new("gzip").arg("-dc").arg(layer)).stdout;
        fs::write(tar.path(), unzipped).expect("a file");
        let diff = format!("sha256:{}", sha256(tar.path()));
        assert_eq!(config["rootfs"]["diff_ids"], serde_json::json!([diff]));
        let listed = text(Command::new("tar").args(["-tvf"]).arg(tar.path()));
        let notices = format!("usr/share/doc/{program}/third-party-notices.gz");
        let authorities = "etc/ssl/certs/ca-certificates.crt".to_owned();
        for path in [format!("usr/bin/{program}"), notices, authorities] {
            assert!(listed.lines().any(|line| line.ends_with(&path)), "{path} in\n{listed}");
        }
        assert!(listed.lines().all(|line| line.contains(" 0/0 ")), "{listed}");
    }
}

#[test]
fn containerd_imports_the_layout_and_runs_a_program_of_it() {
    let Some(made) = made() else { return };
    let uid = fs::metadata("/proc/self").expect("proc").uid();
    if uid != 0 || !["containerd", "ctr", "runc"].into_iter().all(has) {
        println!("SKIPPED: containerd needs root");
        return;
    }
    let dir = tempfile::Builder::new().prefix("orch-packages").tempdir().expect("a directory");
    let private = root().join("hack/containerd-private");
    run(Command::new(&private).arg("start").arg(dir.path()));
    let socket = dir.path().join("containerd.sock");
    let ctr = |line: &str| {
        let script = format!("ctr --address {} {line}", socket.display());
        Command::new("sh").args(["-c", &script]).output().expect("it starts")
    };
    let archive = dir.path().join("layout.tar");
    let packed = Command::new("tar")
        .arg("-C")
        .arg(made.join("oci"))
        .arg("-cf")
        .arg(&archive)
        .arg(".")
        .status();
    let imported = ctr(&format!("images import {}", archive.display()));
    let listed = ctr("images list -q");
    let name = String::from_utf8_lossy(&listed.stdout)
        .lines()
        .find(|name| name.contains("/orchctl:"))
        .map(str::to_owned);
    // Other runs on this machine have containers of their own.
    let id = format!("packages-{}", std::process::id());
    let started = name
        .as_ref()
        .map(|name| ctr(&format!("run --rm {name} {id} /usr/bin/orchctl version --client")));
    // Whatever happened, nothing stays.
    run(Command::new(&private).arg("clean").arg(dir.path()));
    assert!(packed.is_ok_and(|packed| packed.success()));
    assert!(imported.status.success(), "{imported:?}");
    for program in PROGRAMS {
        let all = String::from_utf8_lossy(&listed.stdout).into_owned();
        assert!(all.contains(&format!("orch.local/{program}:")), "{all}");
    }
    let started = started.expect("an image of orchctl");
    assert!(String::from_utf8_lossy(&started.stdout).contains("Client Version"), "{started:?}");
}
