//! The numbers of nftables' messages, attributes and verdicts: those of `linux/netfilter/nf_tables.h`, unless
//! a comment names another file.

/// `NFPROTO_…` in `linux/netfilter.h`.
pub(super) const INET: u8 = 1;
pub(super) const IPV4: u8 = 2;
pub(super) const IPV6: u8 = 10;
/// `NFT_MSG_…`.
pub(super) const NEW_TABLE: u16 = 0;
pub(super) const GET_TABLE: u16 = 1;
pub(super) const DELETE_TABLE: u16 = 2;
pub(super) const NEW_CHAIN: u16 = 3;
pub(super) const GET_CHAIN: u16 = 4;
pub(super) const NEW_RULE: u16 = 6;
pub(super) const GET_RULE: u16 = 7;
pub(super) const NEW_SET: u16 = 9;
pub(super) const GET_SET: u16 = 10;
pub(super) const NEW_ELEMENTS: u16 = 12;
pub(super) const GET_ELEMENTS: u16 = 13;
pub(super) const DELETE_ELEMENTS: u16 = 14;
/// The name of the table in messages about tables, chains, rules, sets and elements.
pub(super) const OF_TABLE: u16 = 1;
pub(super) const TABLE_FLAGS: u16 = 2;
pub(super) const CHAIN_NAME: u16 = 3;
pub(super) const CHAIN_HOOK: u16 = 4;
pub(super) const CHAIN_POLICY: u16 = 5;
pub(super) const CHAIN_TYPE: u16 = 7;
pub(super) const HOOK_NUMBER: u16 = 1;
pub(super) const HOOK_PRIORITY: u16 = 2;
/// `NF_INET_…` in `linux/netfilter.h`: `PRE_ROUTING`, `FORWARD`, `LOCAL_OUT` and `POST_ROUTING`.
pub(super) const AT_PREROUTING: u32 = 0;
pub(super) const AT_FORWARD: u32 = 2;
pub(super) const AT_OUTPUT: u32 = 3;
pub(super) const AT_POSTROUTING: u32 = 4;
/// `NF_DROP` and `NF_ACCEPT` in `linux/netfilter.h`; `NFT_JUMP` and `NFT_GOTO` in
/// `linux/netfilter/nf_tables.h`.
pub(super) const DROP: u32 = 0;
pub(super) const ACCEPT: u32 = 1;
pub(super) const JUMP: u32 = (-3_i32).cast_unsigned();
pub(super) const GOTO: u32 = (-4_i32).cast_unsigned();
pub(super) const SET_NAME: u16 = 2;
pub(super) const SET_FLAGS: u16 = 3;
pub(super) const SET_KEY_TYPE: u16 = 4;
pub(super) const SET_KEY_LENGTH: u16 = 5;
pub(super) const SET_DATA_TYPE: u16 = 6;
pub(super) const SET_DATA_LENGTH: u16 = 7;
pub(super) const SET_NUMBER: u16 = 10;
pub(super) const SET_USER_DATA: u16 = 13;
pub(super) const INTERVAL: u32 = 4;
pub(super) const MAP: u32 = 8;
pub(super) const ELEMENTS_SET: u16 = 2;
pub(super) const ELEMENTS_LIST: u16 = 3;
pub(super) const LIST_ITEM: u16 = 1;
pub(super) const ELEMENT_KEY: u16 = 1;
pub(super) const ELEMENT_DATA: u16 = 2;
pub(super) const ELEMENT_FLAGS: u16 = 3;
pub(super) const ELEMENT_USER_DATA: u16 = 6;
pub(super) const INTERVAL_END: u32 = 1;
pub(super) const RULE_CHAIN: u16 = 2;
pub(super) const RULE_EXPRESSIONS: u16 = 4;
pub(super) const DATA_VALUE: u16 = 1;
pub(super) const EXPRESSION_NAME: u16 = 1;
pub(super) const EXPRESSION_DATA: u16 = 2;
pub(super) const IMMEDIATE_REGISTER: u16 = 1;
pub(super) const IMMEDIATE_DATA: u16 = 2;
pub(super) const DATA_VERDICT: u16 = 2;
pub(super) const VERDICT_CODE: u16 = 1;
pub(super) const VERDICT_CHAIN: u16 = 2;
