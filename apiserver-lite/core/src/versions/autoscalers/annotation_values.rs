//! The forms of values in annotations, as autoscaling/v2 declares them.

use apiserver_schema::Value;
use proto_api::Time;

/// What a value must be.
pub(super) enum Form {
    Text,
    Int32,
    /// A quantity as text.
    Quantity,
    Time,
    List(&'static Form),
    /// A map of texts.
    Texts,
    /// A message with these fields, each optional.
    Message(&'static [(&'static str, Form)]),
}

use Form::{Int32, List, Message, Quantity, Text, Texts};

impl Form {
    pub(super) fn fits(&self, value: &Value) -> bool {
        match (self, value) {
            (Text, Value::String(_)) => true,
            (Int32, Value::Int(number)) => i32::try_from(*number).is_ok(),
            (Quantity, Value::String(text)) => text.parse::<proto_api::Quantity>().is_ok(),
            (Form::Time, Value::String(text)) => text.parse::<Time>().is_ok(),
            (List(form), Value::List(items)) => items.iter().all(|item| form.fits(item)),
            (Texts, Value::Map(map)) => map.iter().all(|(_, value)| Text.fits(value)),
            (Message(fields), Value::Map(map)) => map.iter().all(|(key, value)| {
                let form = fields.iter().find(|(name, _)| *name == key);
                form.is_some_and(|(_, form)| form.fits(value))
            }),
            _ => false,
        }
    }
}

const REQUIREMENT: Form = Message(&[("key", Text), ("operator", Text), ("values", List(&Text))]);

const SELECTOR: Form = Message(&[("matchLabels", Texts), ("matchExpressions", List(&REQUIREMENT))]);

const IDENTIFIER: Form = Message(&[("name", Text), ("selector", SELECTOR)]);

const OBJECT: Form = Message(&[("kind", Text), ("name", Text), ("apiVersion", Text)]);

const TARGET: Form = Message(&[
    ("type", Text),
    ("value", Quantity),
    ("averageValue", Quantity),
    ("averageUtilization", Int32),
]);

const CURRENT: Form =
    Message(&[("value", Quantity), ("averageValue", Quantity), ("averageUtilization", Int32)]);

/// A list of metrics of a spec.
pub(super) const METRICS: Form = List(&Message(&[
    ("type", Text),
    ("resource", Message(&[("name", Text), ("target", TARGET)])),
    ("containerResource", Message(&[("name", Text), ("container", Text), ("target", TARGET)])),
    ("pods", Message(&[("metric", IDENTIFIER), ("target", TARGET)])),
    ("object", Message(&[("describedObject", OBJECT), ("metric", IDENTIFIER), ("target", TARGET)])),
    ("external", Message(&[("metric", IDENTIFIER), ("target", TARGET)])),
]));

/// A list of metrics of a status.
pub(super) const CURRENT_METRICS: Form = List(&Message(&[
    ("type", Text),
    ("resource", Message(&[("name", Text), ("current", CURRENT)])),
    ("containerResource", Message(&[("name", Text), ("container", Text), ("current", CURRENT)])),
    ("pods", Message(&[("metric", IDENTIFIER), ("current", CURRENT)])),
    (
        "object",
        Message(&[("describedObject", OBJECT), ("metric", IDENTIFIER), ("current", CURRENT)]),
    ),
    ("external", Message(&[("metric", IDENTIFIER), ("current", CURRENT)])),
]));

const RULES: Form = Message(&[
    ("stabilizationWindowSeconds", Int32),
    ("selectPolicy", Text),
    ("policies", List(&Message(&[("type", Text), ("value", Int32), ("periodSeconds", Int32)]))),
]);

pub(super) const BEHAVIOR: Form = Message(&[("scaleUp", RULES), ("scaleDown", RULES)]);

pub(super) const CONDITIONS: Form = List(&Message(&[
    ("type", Text),
    ("status", Text),
    ("lastTransitionTime", Form::Time),
    ("reason", Text),
    ("message", Text),
]));
