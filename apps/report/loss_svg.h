// loss.svg: a picture of the loss curve.
#pragma once

#include <string>
#include <vector>

#include "apps/report/files.h"

namespace troupe::report {

struct LossPoint {
  double step = 0;
  double loss = 0;  ///< points that are not finite are left out
};

/// An incident, or a change of the mesh: a dashed line at the step with which the run went on.
struct LossMark {
  double step = 0;
  std::string name;   ///< "generation 5"
  std::string cause;  ///< shown when the mouse is over it
};

struct LossCurve {
  std::string title;             ///< "shakespeare-char on dp=2,pp=2"
  std::string subtitle;          ///< small print: parameters, tokens, date; may be empty
  std::vector<LossPoint> train;  ///< in step order, any number
  std::vector<LossPoint> eval;
  std::vector<LossMark> marks;
};

/// A self-contained SVG document: training loss thin, its moving mean thick, evaluations as dots.
std::string loss_svg(const LossCurve& curve);

Status write_loss_svg(const std::string& path, const LossCurve& curve, Durability durability = Durability::synced);

/// Round numbers (1, 2 or 5 times a power of ten) from just inside lo to just inside hi, about `count` of them.
std::vector<double> nice_ticks(double lo, double hi, int count);

}  // namespace troupe::report
