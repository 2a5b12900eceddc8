//! Pods for the tests of this crate.

use proto_api::core::v1::Container;

use crate::resources::Amounts;

/// Amounts from pairs of name and quantity.
pub fn amounts(list: &[(&str, &str)]) -> Amounts {
    list.iter()
        .map(|(name, amount)| ((*name).to_owned(), amount.parse().expect("quantity")))
        .collect()
}

/// A container with these requests and limits.
pub fn container(requests: &[(&str, &str)], limits: &[(&str, &str)]) -> Container {
    let mut container = Container::default();
    container.resources.requests = amounts(requests);
    container.resources.limits = amounts(limits);
    container
}
