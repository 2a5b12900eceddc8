//! What tests of this crate make pods of.

use proto_api::core::v1::Container;

use crate::resources::Amounts;

/// Amounts from their texts.
pub fn amounts(list: &[(&str, &str)]) -> Amounts {
    list.iter()
        .map(|(name, amount)| ((*name).to_owned(), amount.parse().expect("quantity")))
        .collect()
}

/// A container that asks for so much and may use so much.
pub fn container(requests: &[(&str, &str)], limits: &[(&str, &str)]) -> Container {
    let mut container = Container::default();
    container.resources.requests = amounts(requests);
    container.resources.limits = amounts(limits);
    container
}
