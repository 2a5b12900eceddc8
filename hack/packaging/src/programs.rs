//! The programs that are packaged, where the reference of each stands, and what each says of itself.

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, bail};
use proto_daemon::reference::{ARGUMENT, Reference};

/// A program of the project with the pages that are generated for it.
pub struct Program {
    pub name: &'static str,
    /// The page of its reference.
    pub page: &'static str,
    /// Section of its manual pages.
    pub section: &'static str,
    /// Whether it is a service of the host.
    pub is_daemon: bool,
    /// Flags to begin with, for those who write its command line by themselves.
    example: &'static str,
}

/// A page with the reference of some programs.
pub struct Page {
    /// Where it lies in the repository.
    pub path: &'static str,
    /// What it is of.
    pub title: &'static str,
}

const AGENT: &str = "agent/REFERENCE.md";
const PROXY: &str = "proxy/REFERENCE.md";
const CONTROL_PLANE: &str = "apiserver-lite/REFERENCE.md";
const ADMIN: &str = "apiserver-lite/orchadm/REFERENCE.md";
const CLIENT: &str = "apiserver-lite/orchctl/REFERENCE.md";

/// All pages.
pub const PAGES: &[Page] = &[
    Page { path: AGENT, title: "orchlet" },
    Page { path: PROXY, title: "orch-proxy" },
    Page { path: CONTROL_PLANE, title: "the control plane" },
    Page { path: ADMIN, title: "orchadm" },
    Page { path: CLIENT, title: "orchctl" },
];

/// All programs.
pub const PROGRAMS: &[Program] = &[
    Program {
        name: "orchlet",
        page: AGENT,
        section: "8",
        is_daemon: true,
        example: "--naming=kubernetes --root-dir=/var/lib/kubelet --config=/var/lib/kubelet/config.yaml --kubeconfig=/etc/kubernetes/kubelet.conf",
    },
    Program {
        name: "orch-proxy",
        page: PROXY,
        section: "8",
        is_daemon: true,
        example: "--naming=kubernetes --kubeconfig=/etc/kubernetes/kube-proxy.conf --cluster-cidr=10.244.0.0/16",
    },
    Program {
        name: "orch-apiserver",
        page: CONTROL_PLANE,
        section: "8",
        is_daemon: true,
        example: "--naming=kubernetes --data-dir=/var/lib/orch-apiserver --authorization-mode=Node,RBAC",
    },
    Program {
        name: "orch-controller-manager",
        page: CONTROL_PLANE,
        section: "8",
        is_daemon: true,
        example: "--naming=kubernetes --kubeconfig=/etc/kubernetes/controller-manager.conf",
    },
    Program {
        name: "orch-scheduler",
        page: CONTROL_PLANE,
        section: "8",
        is_daemon: true,
        example: "--naming=kubernetes --kubeconfig=/etc/kubernetes/scheduler.conf",
    },
    Program { name: "orchadm", page: ADMIN, section: "8", is_daemon: false, example: "" },
    Program { name: "orchctl", page: CLIENT, section: "1", is_daemon: false, example: "" },
];

impl Program {
    /// The program of this name.
    pub fn find_program(name: &str) -> Result<&'static Self> {
        PROGRAMS.iter().find(|of| of.name == name).with_context(|| format!("no program {name}"))
    }

    /// What it says of itself.
    pub fn read_reference(&self, bin_dir: &Path) -> Result<Reference> {
        let path = bin_dir.join(self.name);
        let asked = Command::new(&path).arg(ARGUMENT).output();
        let output = asked.with_context(|| format!("cannot run {}", path.display()))?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            bail!("{} {ARGUMENT}: {}; {}", path.display(), output.status, said.trim());
        }
        serde_json::from_slice(&output.stdout)
            .with_context(|| format!("{} {ARGUMENT} printed no reference", path.display()))
    }
}

/// `/etc/default/PROGRAM`, which the unit reads.
pub fn defaults(program: &Program) -> String {
    format!(
        "# Flags of {0}: see {0}({1}). The unit {0}.service is not started until it is enabled:
#   systemctl enable --now {0}
# On hosts of orchadm they are not read: it writes units of its own, with all flags.
#FLAGS=\"{2}\"
FLAGS=\"\"
",
        program.name, program.section, program.example
    )
}
