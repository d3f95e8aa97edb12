// What the figures of a report use of Apache ECharts. `npm ci && npm run build` makes
// ../assets/echarts.min.js of it.
import { init, use } from "echarts/core";
import { HeatmapChart, LineChart } from "echarts/charts";
import {
  AriaComponent, DatasetComponent, DataZoomSliderComponent, GridComponent, LegendComponent,
  LegendScrollComponent, TooltipComponent, VisualMapContinuousComponent, VisualMapPiecewiseComponent,
} from "echarts/components";
import { CanvasRenderer, SVGRenderer } from "echarts/renderers";

use([
  HeatmapChart, LineChart, AriaComponent, DatasetComponent, DataZoomSliderComponent, GridComponent,
  LegendComponent, LegendScrollComponent, TooltipComponent, VisualMapContinuousComponent,
  VisualMapPiecewiseComponent,
  CanvasRenderer, SVGRenderer,
]);

export { init };
