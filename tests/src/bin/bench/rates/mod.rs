//! Rates of traffic: loads, the paths they take, and the rates of several ways compared.

pub(crate) mod chart;
pub(crate) mod comparison;
pub(crate) mod goal;
pub(crate) mod load;
pub(crate) mod path;
pub(crate) mod tables;
