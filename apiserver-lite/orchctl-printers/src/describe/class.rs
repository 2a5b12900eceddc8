//! Classes of ingresses and priorities, and the drivers of volumes of a node.

use serde_json::Value;

use super::common::{self, number, texts, word};
use super::{Context, Page};
use crate::objects;

pub(super) fn describe_ingress_class(page: &mut Page, object: &Value, context: Context<'_>) {
    page.field(0, "Name", objects::name(object));
    common::labels(page, object, context);
    page.field(0, "Controller", objects::text_at(object, "/spec/controller"));
    let Some(parameters) = object.pointer("/spec/parameters") else { return };
    page.line(0, "Parameters:");
    for (title, pointer) in [("APIGroup", "/apiGroup"), ("Kind", "/kind"), ("Name", "/name")] {
        if parameters.pointer(pointer).is_some() {
            page.field(1, title, objects::text_at(parameters, pointer));
        }
    }
}

pub(super) fn describe_priority_class(page: &mut Page, object: &Value) {
    page.field(0, "Name", objects::name(object));
    page.field(0, "Value", number(object, "/value").to_string());
    page.field(0, "GlobalDefault", word(object, "/globalDefault", "false"));
    let policy = word(object, "/preemptionPolicy", "PreemptLowerPriority");
    page.field(0, "PreemptionPolicy", policy);
    page.field(0, "Description", objects::text_at(object, "/description"));
    let annotations = objects::map_at(object, "/metadata/annotations");
    page.field(0, "Annotations", objects::pairs(annotations));
}

pub(super) fn describe_csi_node(page: &mut Page, object: &Value, context: Context<'_>) {
    page.field(0, "Name", objects::name(object));
    common::labels(page, object, context);
    common::created(page, object);
    page.line(0, "Spec:");
    let drivers = objects::list_at(object, "/spec/drivers");
    if drivers.is_empty() {
        return;
    }
    page.line(1, "Drivers:");
    for driver in drivers {
        page.line(2, format!("{}:", objects::text_at(driver, "/name")));
        page.field(3, "Node ID", objects::text_at(driver, "/nodeID"));
        if driver.pointer("/allocatable/count").is_some() {
            page.line(3, "Allocatables:");
            page.field(4, "Count", number(driver, "/allocatable/count").to_string());
        }
        let keys = texts(driver, "/topologyKeys");
        if !keys.is_empty() {
            page.field(3, "Topology Keys", format!("[{}]", keys.join(" ")));
        }
    }
}
