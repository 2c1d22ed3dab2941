//! The promises of tollgate, each a module, kept over real sockets between a client and a gateway
//! that both do whatever a test wants.
#![cfg(test)]

mod support;
mod the_key_never_leaves;
