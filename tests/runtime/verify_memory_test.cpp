// The verifier: faults planted in memory, places, operands and the optimizer are refused with the culprit's name.
#include "tests/runtime/planted.h"

using namespace planted;

TEST_CASE("the pool of every rank has room for all memory that the rank counts by purpose") {
  Shape_ s;
  s.width = 100;
  s.hidden = 100;
  for (const std::vector<std::int64_t>& dp :
       {std::vector<std::int64_t>{1}, {2}, {3}, {5}, {7}, {3, 3}, {3, 1}, {2, 5}}) {
    INFO(text(dp));
    const Plan p = good_plan(dp, s);
    for (Rank r = 0; r < p.workers(); ++r) {
      const auto local = local_plan(p, r);
      REQUIRE(local.ok());
      CHECK(local->pool_bytes >= local->memory.total());
    }
  }
}

TEST_CASE("memory, places and roles that do not fit are refused, and the message names who does not") {
  const Plan good = good_plan({2, 1});
  auto first = [&](PlanRole& role, PlanActor::Kind kind) -> PlanActor& {
    for (auto& a : role.actors)
      if (a.kind == kind) return a;
    FAIL("no " << to_string(kind));
    return role.actors[0];
  };
  auto channel_of = [&](PlanRole& role, PlanChannel::Kind kind) -> PlanChannel& {
    for (auto& c : role.channels)
      if (c.kind == kind && !c.tensors.empty()) return c;
    FAIL("no " << to_string(kind));
    return role.channels[0];
  };
  for (auto kind : {PlanChannel::Kind::stash, PlanChannel::Kind::parameter, PlanChannel::Kind::gradient,
                    PlanChannel::Kind::reduced}) {
    Plan p = good;
    PlanChannel& c = channel_of(p.roles[0], kind);
    INFO(to_string(kind));
    const std::string name = "'" + c.name + "'", tensor = "'" + p.tensors[c.tensors.back()].name + "'";
    c.offsets.back() += 64;
    check_refused(p, {"stage 0", name, tensor, "bytes"});
    c.offsets.back() -= 68;
    check_refused(p, {name});
    c.offsets.back() += 4;
    c.bytes -= 64;
    check_refused(p, {name, tensor});
  }
  Plan p = good;
  PlanChannel& pair = channel_of(p.roles[0], PlanChannel::Kind::parameter);
  REQUIRE(pair.tensors.size() > 1);
  pair.offsets[1] = pair.offsets[0];
  check_refused(p, {"'" + pair.name + "'", "where another tensor is"});

  p = good;
  p.roles[1].stage = 0;
  check_refused(p, {"stage 1", "of stage 0"});

  p = good;  // a scratch tensor that ends where the op's own scratch begins
  bool planted = false;
  for (auto& a : p.roles[0].actors)
    for (auto& op : a.ops)
      for (auto& o : op.out)
        if (o.where == PlanOperand::Where::scratch && !planted) {
          planted = true;
          o.offset = a.op_scratch_offset;
          check_refused(p, {"'" + op.name + "'", "'" + a.name + "'", "nowhere"});
        }
  CHECK(planted);

  p = good;
  PlanActor& norm = first(p.roles[0], PlanActor::Kind::norm);
  norm.params[0].grads.clear();
  check_refused(p, {"'" + norm.name + "'", "no gradient"});
  p = good;
  PlanActor& index = first(p.roles[0], PlanActor::Kind::update);
  index.params[0].index = 1;
  check_refused(p, {"'" + index.name + "'", "'" + p.params[index.params[0].param].name + "'"});
  index.params[0].index = 77;
  check_refused(p, {"'" + index.name + "'"});

  p = good;  // an update without a commit to wait for
  PlanActor& update = first(p.roles[0], PlanActor::Kind::update);
  const auto who = static_cast<std::int32_t>(&update - p.roles[0].actors.data());
  for (auto& c : p.roles[0].channels)
    if (c.name == "commit") std::erase_if(c.readers, [&](const PlanReader& r) { return r.actor == who; });
  const auto at = std::find_if(update.in.begin(), update.in.end(),
                               [&](auto id) { return p.roles[0].channels[id].name == "commit"; });
  REQUIRE(at == update.in.end() - 1);
  update.in.erase(at);
  check_refused(p, {"update actor '" + update.name + "'", "0 commit ports"});

  p = good;
  PlanActor& exchange = first(p.roles[0], PlanActor::Kind::exchange);
  const auto tensor = p.exchanges[exchange.exchange].moves[0];
  std::swap(p.exchanges[exchange.exchange].moves[0].from, p.exchanges[exchange.exchange].moves[0].to);
  check_refused(p, {"'" + exchange.name + "'"});
  p.exchanges[exchange.exchange].moves[0] = {tensor.from, tensor.from};
  check_refused(p, {"'" + exchange.name + "'"});

  p = good;
  PlanActor& segment = first(p.roles[0], PlanActor::Kind::segment);
  segment.stream = "side";
  check_refused(p, {"'" + segment.name + "'", "'side'", "'compute'"});
  p = good;
  first(p.roles[0], PlanActor::Kind::norm).closes_step = !first(p.roles[0], PlanActor::Kind::norm).closes_step;
  check_refused(p, {"'" + first(p.roles[0], PlanActor::Kind::norm).name + "'", "step"});
}

TEST_CASE("an op that reads scratch that no op has filled, or writes over one, is refused by name") {
  const Plan good = good_plan({1});
  int read = 0, written = 0;
  for (std::size_t i = 0; i < good.roles[0].actors.size(); ++i)
    for (std::size_t k = 0; k < good.roles[0].actors[i].ops.size(); ++k) {
      Plan p = good;
      PlanActor& a = p.roles[0].actors[i];
      a.op_scratch_offset += 1 << 20;  // room enough for whatever is planted
      a.scratch_bytes += 1 << 20;
      REQUIRE(verify(p).ok());
      PlanOp& op = a.ops[k];
      const std::string name = "op '" + op.name + "' of '" + a.name + "'";
      auto scratch = [](PlanOperand& o) { return o.where == PlanOperand::Where::scratch; };
      const auto in = std::find_if(op.in.begin(), op.in.end(), scratch);
      const auto out = std::find_if(op.out.begin(), op.out.end(), scratch);
      if (in == op.in.end()) continue;
      if (out != op.out.end()) {
        const auto kept = out->offset;
        out->offset = in->offset;
        check_refused(p, {name, "where another argument is", "'" + p.tensors[out->tensor].name + "'"});
        out->offset = kept;
        ++written;
      }
      in->offset += 64;
      check_refused(p, {name, "where no op before it left it", "'" + p.tensors[in->tensor].name + "'"});
      ++read;
    }
  CHECK(read > 0);
  CHECK(written > 0);
}

TEST_CASE("a slot of trained parameters without an exponent for each of them is refused by the name of who needs it") {
  const Plan good = good_plan({2, 1});
  int planted = 0;
  for (const auto& role : good.roles)
    for (const auto& c : role.channels) {
      if (c.kind != PlanChannel::Kind::parameter || role.actors[c.writer].params.empty()) continue;
      const std::string group = c.name.substr(0, c.name.rfind(".params"));
      for (const int what : {0, 1, 2}) {
        Plan p = good;
        PlanTensor& exponents = p.tensors[c.tensors.back()];
        REQUIRE(exponents.dtype == DType::i32);
        if (what == 0) exponents.shape[0] -= 1;
        if (what == 1) exponents.dtype = DType::f32;
        if (what == 2) exponents.sbp[static_cast<std::size_t>(dp_axis(p.meshes[exponents.mesh]))] = Sbp::S(0);
        check_refused(p, {"stage " + std::to_string(role.stage), "'" + group + ".",
                          "does not find the exponents of its gradients' sums"});
      }
      ++planted;
    }
  CHECK(planted == 3);  // layers
}

TEST_CASE("an actor that makes, rounds or converts gradients and does not read their exponents is refused by name") {
  // The slot's reader list and the actor's ports forget each other.
  const auto forget = [](PlanRole& role, std::int32_t actor, std::int32_t channel) {
    auto& readers = role.channels[channel].readers;
    const auto it = std::find_if(readers.begin(), readers.end(), [&](const auto& r) { return r.actor == actor; });
    if (it == readers.end()) return false;
    const auto port = it->port;
    readers.erase(it);
    auto& in = role.actors[actor].in;
    in.erase(in.begin() + port);
    for (auto& c : role.channels)
      for (auto& r : c.readers)
        if (r.actor == actor && r.port > port) --r.port;
    for (auto& op : role.actors[actor].ops)
      for (auto& o : op.in)
        if (o.where == PlanOperand::Where::in && o.port > port) --o.port;
    for (auto& ref : role.actors[actor].params)
      for (auto& use : ref.grads)
        if (use.port > port) --use.port;
    return true;
  };
  int planted = 0;
  for (const std::int32_t zero : {0, 2}) {
    auto good = plan(ops(), {}, {2}, zero);
    REQUIRE(good.ok());
    REQUIRE(verify(*good).ok());
    const PlanRole& role = good->roles[0];
    for (std::int32_t c = 0; c < static_cast<std::int32_t>(role.channels.size()); ++c) {
      if (role.channels[c].kind != PlanChannel::Kind::parameter) continue;
      for (std::int32_t a = 0; a < static_cast<std::int32_t>(role.actors.size()); ++a) {
        const PlanActor& actor = role.actors[a];
        const bool converts =
            actor.kind == PlanActor::Kind::exchange &&
            std::any_of(good->exchanges[actor.exchange].moves.begin(), good->exchanges[actor.exchange].moves.end(),
                        [&](const auto& m) { return good->tensors[m.from].dtype != good->tensors[m.to].dtype; });
        if (actor.kind != PlanActor::Kind::norm && !converts) continue;
        Plan p = *good;
        if (!forget(p.roles[0], a, c)) continue;
        check_refused(p, {"'" + actor.name + "'", "exponent"});
        ++planted;
      }
    }
  }
  CHECK(planted == 2 * (3 + 3));  // norms, and gathers or reductions
}

TEST_CASE("norms that take other gradients on other stages are refused: they need not cover the parameter once") {
  Shape_ s;
  s.tied = true;
  auto made = plan(ops(), s, {2, 1}, 2);  // in rounds each use has a sum of its own
  REQUIRE(made.ok());
  const Plan good = *std::move(made);
  int planted = 0;
  for (std::size_t i = 0; i < good.roles[0].actors.size(); ++i) {
    const PlanActor& a = good.roles[0].actors[i];
    for (std::size_t k = 0; k < a.params.size(); ++k) {
      if (a.kind != PlanActor::Kind::norm || a.params[k].grads.size() < 2) continue;
      Plan p = good;
      auto& grads = p.roles[0].actors[i].params[k].grads;
      const std::string name = "'" + p.params[a.params[k].param].name + "'";
      std::swap(grads[0], grads[1]);  // added in another order than on stage 1
      check_refused(p, {name, "other gradients"});
      std::swap(grads[0], grads[1]);
      grads.pop_back();
      check_refused(p, {name, "other gradients"});
      ++planted;
    }
  }
  CHECK(planted == 1);
}

TEST_CASE("a norm whose rows are split over dp is refused by the name of its gradient: a row is summed in one place") {
  Plan p = good_plan({2});
  int planted = 0;
  for (std::size_t i = 0; i < p.tensors.size(); ++i) {
    PlanTensor& g = p.tensors[i];
    if (!g.name.ends_with(".share")) continue;
    Sbp& sbp = g.sbp[static_cast<std::size_t>(dp_axis(p.meshes[g.mesh]))];
    REQUIRE(sbp == Sbp::S(0));
    sbp = Sbp::S(1);
    check_refused(p, {"'" + g.name + "'", "dim 1 over dp"});
    sbp = Sbp::S(0);
    ++planted;
  }
  CHECK(planted == 6);  // up and down of three layers
}

TEST_CASE("an op whose arguments it would not accept is refused by name before its kernel runs") {
  const Plan good = good_plan({1});
  REQUIRE(check_ops(good, 0, ops()).ok());
  auto segment = [](Plan& p) -> PlanActor& {
    for (auto& a : p.roles[0].actors)
      if (a.kind == PlanActor::Kind::segment && a.ops.size() > 1) return a;
    FAIL("no segment");
    return p.roles[0].actors[0];
  };
  auto refused = [](const Plan& p, const std::vector<std::string>& names) {
    const Status s = check_ops(p, 0, ops());
    REQUIRE_FALSE(s.ok());
    for (const auto& name : names)
      CHECK_MESSAGE(s.message().find(name) != std::string::npos, "'" << name << "' is not in: " << s.message());
  };
  Plan p = good;
  PlanOp& op = segment(p).ops[0];
  REQUIRE(op.op == "linear");
  const PlanOp kept = op;
  op.op = "linaer";
  refused(p, {"'" + kept.name + "'", "'linaer'"});
  op = kept;
  op.in.pop_back();
  refused(p, {"'" + kept.name + "'", "1 inputs", "needs 2"});
  op = kept;
  std::swap(op.in[0], op.in[1]);
  refused(p, {"'" + kept.name + "'"});
  op = kept;
  p.tensors[op.out[0].tensor].shape.back() -= 1;
  refused(p, {"'" + kept.name + "'", "another type"});

  p = good;
  for (auto& a : p.roles[0].actors)
    if (a.scratch_bytes > a.op_scratch_offset) {
      a.scratch_bytes = a.op_scratch_offset;
      refused(p, {"'" + a.name + "'", "bytes of scratch"});
      return;
    }
  FAIL("no op of this plan has scratch of its own");
}
